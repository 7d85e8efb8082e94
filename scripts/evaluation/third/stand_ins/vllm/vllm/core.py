"""One engine: a model's memory, and the worker that other code calls it by."""

from __future__ import annotations

import importlib
from types import SimpleNamespace

import torch

from vllm.memory import Held


class Model:
    """A model whose weights can be replaced; it computes nothing."""

    def __init__(self, held: Held):
        self.held = held

    def generate(self) -> None:
        """One pass of a module, of which each of vLLM's would have many."""
        torch.nn.Identity()(torch.zeros(1))
        self.held.note("generate")

    def load_weights(self, weights) -> set[str]:
        return self.held.load(weights)

    def named_parameters(self, remove_duplicate: bool = True):
        return iter(self.held.weights.items())

    def named_buffers(self):
        return iter(())

    def compute_logits(self, *_, **settings):
        raise NotImplementedError


class Worker:
    """What vLLM's GPU worker has; `worker_extension_cls` is mixed into it, as vLLM does."""

    def __init__(self, vllm_config: SimpleNamespace):
        vllm_config.worker = self
        self.local_rank = self.rank = 0
        self.device = torch.device("cuda", torch.cuda.current_device())
        self.vllm_config = vllm_config
        self.model_config = vllm_config.model_config
        self.model_runner = SimpleNamespace(model=Model(vllm_config.held), vllm_config=vllm_config)
        if not torch.distributed.is_initialized():
            store = torch.distributed.HashStore()
            torch.distributed.init_process_group("gloo", store=store, rank=0, world_size=1)


def start(
    model: str,
    gpu_memory_utilization: float = 0.9,
    max_model_len: int | None = None,
    enable_sleep_mode: bool = False,
    dtype: str = "auto",
    worker_extension_cls: str = "",
    **settings,
) -> Worker:
    """A worker whose model is on the card. Settings that change no memory are passed over."""
    from transformers import AutoConfig

    config = AutoConfig.from_pretrained(model)
    own = None if dtype == "auto" else getattr(torch, str(dtype).removeprefix("torch."))
    held = Held(config, gpu_memory_utilization, sleeps=enable_sleep_mode, dtype=own)
    room = max_model_len or config.get_text_config().max_position_embeddings
    described = SimpleNamespace(
        held=held,
        model_config=SimpleNamespace(dtype=held.dtype, max_model_len=room, hf_config=config),
        quant_config=None,
        speculative_config=None,
        parallel_config=SimpleNamespace(data_parallel_master_port=0),
        weight_transfer_config=None,
    )
    kind = Worker
    if worker_extension_cls:
        module, _, name = worker_extension_cls.rpartition(".")
        extension = getattr(importlib.import_module(module), name)
        kind = type("Worker", (extension, Worker), {})
    return kind(vllm_config=described)
