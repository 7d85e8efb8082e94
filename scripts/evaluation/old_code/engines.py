"""What the code of published runs on several GPUs did differently, as changes for one job.

Each difference is named by its cause and says where that was read. They hold for a job that runs on
the emulated GPU; those of `adaptations` that change only models and losses hold there too.
"""

from __future__ import annotations

import contextlib
import tempfile
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from functools import partial
from pathlib import Path
from typing import Any
from unittest import mock

from old_code import lit_gpt, recomputing
from old_code.adaptations import ADAPTATIONS, Adaptation
from oomdoctor.records.configuration.config import TrainConfig

_USUAL_TOKENS = 256
_SUB_GROUP = 100_000_000  # elements that DeepSpeed has twice on the host while it makes them


@contextlib.contextmanager
def _outputs_kept(_: TrainConfig) -> Iterator[None]:
    from transformers import Trainer

    compute = Trainer.compute_loss

    def compute_loss(self: Any, model: Any, inputs: Any, *_: Any, **options: Any) -> Any:
        options["return_outputs"] = True
        loss, outputs = compute(self, model, inputs, **options)
        loss.register_hook(lambda _, kept=outputs: None)
        return loss

    with mock.patch.object(Trainer, "compute_loss", compute_loss):
        yield


@contextlib.contextmanager
def _fp32_logits_kept(_: TrainConfig) -> Iterator[None]:
    from torch.nn.functional import cross_entropy
    from transformers.loss.loss_utils import LOSS_MAPPING

    def loss_of(logits: Any, labels: Any, vocab_size: int, **_: Any) -> Any:
        kept = logits.float()
        shifted = kept[..., :-1, :].contiguous()
        wanted = labels[..., 1:].contiguous().view(-1)
        loss = cross_entropy(shifted.view(-1, vocab_size), wanted)
        loss.register_hook(lambda _, kept=kept: None)
        return loss

    with mock.patch.dict(LOSS_MAPPING, ForCausalLM=loss_of):
        yield


@contextlib.contextmanager
def _whole_on_device(_: TrainConfig) -> Iterator[None]:
    with mock.patch("oomdoctor.worker.training.loading._place", lambda _: "device"):
        yield


@contextlib.contextmanager
def _overlapped(_: TrainConfig) -> Iterator[None]:
    from oomdoctor.stacks import engines

    settings_of = engines.zero_settings

    def zero_settings(config: TrainConfig) -> dict[str, Any]:
        settings = settings_of(config)
        settings["zero_optimization"]["overlap_comm"] = True
        return settings

    with mock.patch.object(engines, "zero_settings", zero_settings):
        yield


@contextlib.contextmanager
def _adapters_within_layers(_: TrainConfig) -> Iterator[None]:
    from accelerate.state import AcceleratorState

    def policy(model: Any) -> Any:
        plugin = AcceleratorState().fsdp_plugin
        plugin.set_auto_wrap_policy(model)
        return plugin.auto_wrap_policy

    with mock.patch("peft.utils.other.fsdp_auto_wrap_policy", policy):
        yield


@contextlib.contextmanager
def _loss_of_lit_gpt(config: TrainConfig) -> Iterator[None]:
    from oomdoctor.worker.training import build

    load = build.load_model

    def load_model(*given: Any) -> Any:
        model, attention = load(*given)
        chunked = partial(lit_gpt.chunked_forward, model.base_model, model.get_output_embeddings())
        model.forward = chunked
        return model, attention

    with mock.patch.object(build, "load_model", load_model):
        yield


@contextlib.contextmanager
def _longest_first(_: TrainConfig) -> Iterator[None]:
    from oomdoctor.worker.measuring import measure

    made = measure.held_batches

    def held_batches(*given: Any, **options: Any) -> list[dict[str, Any]]:
        first, *others = made(*given, **options)
        shorter = [{name: t[:, :_USUAL_TOKENS] for name, t in one.items()} for one in others]
        return [first, *shorter]

    with mock.patch.object(measure, "held_batches", held_batches):
        yield


@contextlib.contextmanager
def _idle_host(_: TrainConfig) -> Iterator[None]:
    from oomdoctor.stacks import engines

    settings_of = engines.zero_settings

    def zero_settings(config: TrainConfig) -> dict[str, Any]:
        settings = settings_of(config)
        settings["zero_optimization"]["sub_group_size"] = _SUB_GROUP
        return settings

    with (
        mock.patch("torch.optim.AdamW.step", lambda *_, **__: None),
        mock.patch.object(engines, "zero_settings", zero_settings),
    ):
        yield


def _fused(*features: str) -> Callable[[TrainConfig], AbstractContextManager[None]]:
    @contextlib.contextmanager
    def fused(_: TrainConfig) -> Iterator[None]:
        from emulated.accelerated import framework

        row = {"quant": None, "features": features}

        def enable_checkpointing(model: Any, enable: Callable[[], None]) -> None:
            enable()
            with tempfile.TemporaryDirectory() as folder:
                plugins = framework(row, Path(folder))
                plugins.augmentation(model, None, modifiable_args=(None,))
                plugins.get_callbacks_and_ready_for_train(model)

        with recomputing.checkpointing_by(enable_checkpointing):
            yield

    return fused


ENGINE_ADAPTATIONS = {
    **ADAPTATIONS,
    "outputs kept": Adaptation(
        "has a name for the model's outputs, so the logits live through the backward pass",
        "github stas00/ml-engineering insights/when-to-upgrade-gpus/benchmark.py @744d01e",
        _outputs_kept,
    ),
    "fp32 logits kept": Adaptation(
        "makes fp32 logits in the model, copies them without the last position, and has a name "
        "for the model's outputs",
        "transformers 4.38 models/llama/modeling_llama.py LlamaForCausalLM.forward, and github "
        "AnswerDotAI/fsdp_qlora train.py",
        _fp32_logits_kept,
    ),
    "whole model before ZeRO": Adaptation(
        "loads the whole model on each GPU, and DeepSpeed splits it there",
        "github stas00/ml-engineering insights/when-to-upgrade-gpus/benchmark.py @744d01e, without "
        "deepspeed.zero.Init",
        _whole_on_device,
    ),
    "overlapped reduction": Adaptation(
        "sets overlap_comm, which DeepSpeed's stages 1 and 2 do not by default",
        "github stas00/ml-engineering insights/when-to-upgrade-gpus/benchmark.py @744d01e",
        _overlapped,
    ),
    "reentrant checkpoints": Adaptation(
        "runs checkpointed layers without a graph first, and makes the inputs require gradients",
        "transformers before 5 modeling_utils.py gradient_checkpointing_enable, whose default is "
        "use_reentrant",
        recomputing.reentrant,
    ),
    "fused kernels": Adaptation(
        "fuses norms, rotary embeddings and cross-entropy, with the packages of the row",
        "github foundation-model-stack/fms-acceleration plugins/fused-ops-and-kernels",
        _fused("foak"),
    ),
    "fused kernels and head": Adaptation(
        "fuses norms, rotary embeddings, and the head with the loss, with the packages of the row",
        "github foundation-model-stack/fms-acceleration plugins/fused-ops-and-kernels",
        _fused("foak", "liger"),
    ),
    "operators recomputed": Adaptation(
        "keeps the results of attention and of every second matrix product of a layer",
        "github pytorch/torchtitan parallelisms/parallelize_llama.py @9dec370 "
        "_apply_ac_to_transformer_block, whose setting in llama3_8b.toml is op",
        recomputing.operators_recomputed,
    ),
    "idle host": Adaptation(
        "updates the weights on the host, which takes no memory of a GPU and is not done here",
        "the row's offload of the optimizer",
        _idle_host,
    ),
    "longest batch first": Adaptation(
        "puts the longest sample into the first batch; others have 256 tokens, as 96 % of Alpaca's "
        "samples have at most",
        "github Lightning-AI/litgpt finetune/lora.py @8641822b longest_seq_ix; tloen/alpaca-lora "
        "finetune.py of cutoff_len",
        _longest_first,
    ),
    "adapters within layers": Adaptation(
        "has adapters in the unit of their layer, whose gradients are those of all its weights",
        "github Lightning-AI/litgpt finetune/lora.py @8641822b FSDPStrategy, "
        "lightning.fabric strategies/fsdp.py, which uses original parameters",
        _adapters_within_layers,
    ),
    "lit-gpt's loss": Adaptation(
        "has a chunked head and loss, and fp32 logits that live through the backward pass",
        "github Lightning-AI/litgpt lit_gpt/lora.py, utils.py and finetune/lora.py @8641822b",
        _loss_of_lit_gpt,
    ),
}
