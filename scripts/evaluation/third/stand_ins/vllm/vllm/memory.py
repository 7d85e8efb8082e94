"""What vLLM holds of a card: weights in 16 bits, and keys and values up to its share.

The rule is that of vLLM's GPU worker (`determine_available_memory`): keys and values get what the
weights leave of `gpu_memory_utilization`, in whole blocks, a tensor a layer. Left out are its
profiling run, CUDA graphs and its own context, so all of the share is weights, keys and values.
In sleep mode both have memory pools of their own, as `CuMemAllocator` gives them, which are
released asleep.
"""

from __future__ import annotations

import gc
import json
import os
from collections.abc import Iterable
from pathlib import Path

import torch

BLOCK = 16  # tokens of a block of keys and values
LOG = "VLLM_STAND_IN_LOG"  # names a file that gets a line for each moment


class Held:
    """The memory of one engine, on the current device."""

    def __init__(self, config, share: float, *, sleeps: bool, dtype: torch.dtype | None = None):
        """Allocate as vLLM does when it starts; ValueError where it would not start."""
        free, total = torch.cuda.mem_get_info()
        if free < share * total:
            raise ValueError(
                f"Free memory on device ({free / 2**30:.2f}/{total / 2**30:.2f} GiB) on startup "
                f"is less than desired GPU memory utilization ({share})"
            )
        text = config.get_text_config()
        own = dtype or getattr(text, "dtype", None)
        self.dtype = torch.bfloat16 if own == torch.bfloat16 else torch.float16
        self.shapes = _shapes(config)
        self.sleeps = sleeps
        heads = getattr(text, "num_key_value_heads", None) or text.num_attention_heads
        width = getattr(text, "head_dim", None) or text.hidden_size // text.num_attention_heads
        self.layers = text.num_hidden_layers
        self.block_bytes = 2 * BLOCK * heads * width * self.dtype.itemsize
        weights = sum(shape.numel() for shape in self.shapes.values()) * self.dtype.itemsize
        self.blocks = int((share * total - weights) / (self.block_bytes * self.layers))
        if self.blocks <= 0:
            raise ValueError("No available memory for the cache blocks.")
        self.weights: dict[str, torch.Tensor] = {}
        self.cache: list[torch.Tensor] = []
        self.pools: dict[str, torch.cuda.MemPool] = {}
        self.wake()
        self.note("started")

    def wake(self, tags: Iterable[str] | None = None) -> None:
        """Allocate what is asleep of `weights` and `kv_cache`; of both without tags."""
        for tag in tags or ("weights", "kv_cache"):
            if not self.sleeps:
                self._fill(tag)
                continue
            pool = self.pools.setdefault(tag, torch.cuda.MemPool())
            with torch.cuda.use_mem_pool(pool):
                self._fill(tag)

    def sleep(self) -> None:
        self.weights, self.cache, self.pools = {}, [], {}
        gc.collect()
        torch.cuda.empty_cache()
        self.note("asleep")

    def load(self, tensors: Iterable[tuple[str, torch.Tensor]]) -> set[str]:
        """Copy new weights onto those of the engine, whatever their names; nothing is kept."""
        names = set()
        for name, tensor in tensors:
            target = self.weights.get(name)
            if target is not None:
                target.copy_(tensor.reshape(target.shape))
            names.add(name)
            self.note("sync")
        return names

    def note(self, moment: str) -> None:
        """Write what is allocated now, and what the engine has of it, to the log."""
        if not (file := os.environ.get(LOG)):
            return
        free, total = torch.cuda.mem_get_info()
        held = (*self.weights.values(), *self.cache)
        line = {
            "moment": moment,
            "allocated_bytes": torch.cuda.memory_allocated(),
            "device_bytes": total - free,
            "engine_bytes": sum(tensor.nbytes for tensor in held),
        }
        with Path(file).open("a") as log:
            log.write(json.dumps(line) + "\n")

    def _fill(self, tag: str) -> None:
        if tag == "weights" and not self.weights:
            self.weights = {
                name: torch.empty(shape, dtype=self.dtype, device="cuda")
                for name, shape in self.shapes.items()
            }
        if tag == "kv_cache" and not self.cache:
            size = self.blocks * self.block_bytes
            self.cache = [
                torch.empty(size, dtype=torch.int8, device="cuda") for _ in range(self.layers)
            ]


def _shapes(config) -> dict[str, torch.Size]:
    """The parameters of a model, tied ones once."""
    import transformers

    name = (getattr(config, "architectures", None) or [""])[0]
    kind = getattr(transformers, name, transformers.AutoModelForCausalLM)
    build = kind.from_config if kind is transformers.AutoModelForCausalLM else kind._from_config
    with torch.device("meta"):
        model = build(config)
    return {name: parameter.shape for name, parameter in model.named_parameters()}
