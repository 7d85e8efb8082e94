"""The short name of a rung: what differs from the defaults."""

from __future__ import annotations

from typing import TYPE_CHECKING

from oomdoctor.records.facts.attention import ATTENTIONS
from oomdoctor.records.facts.dtypes import dtype_word
from oomdoctor.records.facts.optimizers import DEFAULT_OPTIMIZER, OPTIMIZERS

if TYPE_CHECKING:
    from oomdoctor.records.config import TrainConfig


def label_of(config: TrainConfig) -> str:
    """A short name of what differs from the defaults, such as `qlora-nf4+ckpt+paged8bit`."""
    if config.method == "full":
        head = "full-" + _precision(config)
    elif config.method == "lora":
        head = f"lora-r{config.lora_rank}-" + _precision(config)
    else:
        head = f"qlora-{config.quantization}-r{config.lora_rank}"
        if "float16" in (config.weights_dtype, config.autocast_dtype):
            head += "-fp16"
    parts = [head, *_objective_words(config), *_adapter_words(config)]
    if config.frozen_layers:
        parts.append(f"frozen-{config.frozen_layers}")
    if config.activation_checkpointing != "none":
        word = _CHECKPOINTING_WORDS[config.activation_checkpointing]
        parts.append(word.format(config.checkpoint_every))
    if config.fp8 != "none":
        parts.append("fp8" if config.fp8 == "torchao" else "fp8-te")
    if config.optimizer != DEFAULT_OPTIMIZER:
        row = OPTIMIZERS.get(config.optimizer)
        rank = f"-r{config.optimizer_rank}" if row is not None and row.low_rank else ""
        parts.append(((row and row.word) or config.optimizer) + rank)
    if config.optimizer_in_backward:
        parts.append("in-backward")
    if config.attention != "sdpa":
        parts.append(ATTENTIONS[config.attention].word)
    if config.loss != "default":
        parts.append(config.loss)
    if config.packing != "none":
        parts.append(config.packing.replace("_", "-"))
    if config.padding != "none":
        parts.append(f"pad-{config.padding.replace('_', '-')}")
    if config.library != "transformers":
        parts.append(config.library)
    if config.compile:
        parts.append("compile")
    if config.offload != "none":
        parts.append(f"offload-{config.offload}")
    if config.sharding != "none":
        word = config.sharding.replace("_", "-")
        version = "1" if config.fsdp_version == 1 else ""
        parts.append(f"{word}{version}x{config.world_size}")
    if config.allocator != "default":
        parts.append("expandable")
    return "+".join(parts)


_CHECKPOINTING_WORDS = {
    "full": "ckpt",
    "every_n": "ckpt-every-{}",
    "attention": "ckpt-attention",
    "mlp": "ckpt-mlp",
    "offload": "ckpt-offload",
}


def _objective_words(config: TrainConfig) -> list[str]:
    """What is trained for, if that is not the task of the model."""
    words: list[str] = [config.objective] if config.objective != "default" else []
    words += [f"{config.reference}-ref"] if config.reference != "default" else []
    if config.vllm_gpu_memory_utilization:
        words.append(f"vllm-{config.vllm_gpu_memory_utilization:g}")
    return words + (["frozen-vision"] if config.vision == "frozen" else [])


def _adapter_words(config: TrainConfig) -> list[str]:
    """What LoRA is extended by; a full fine-tuning has none of it."""
    words = ["dora"] if config.use_dora else []
    words += ["rslora"] if config.use_rslora else []
    if config.adapter_dtype != "default":
        words.append(f"adapters-{dtype_word(config.adapter_dtype)}")
    if config.modules_to_save:
        words.append("save-" + "-".join(config.modules_to_save))
    return words


def _precision(config: TrainConfig) -> str:
    weights = dtype_word(config.weights_dtype)
    if config.autocast_dtype == "none":
        return weights
    return f"{weights}-amp-{dtype_word(config.autocast_dtype)}"
