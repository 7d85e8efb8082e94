"""Which rungs a script can say: all of their keys, or they are refused."""

from __future__ import annotations

from dataclasses import fields

from oomdoctor.records.config import TrainConfig
from oomdoctor.stacks.names.techniques import low_rank
from oomdoctor.stacks.rung import StackRung, not_in

# The keys of a rung that a script says where they are not the default.
_SAID = frozenset(
    {
        *("method", "weights_dtype", "autocast_dtype", "optimizer", "attention"),
        *("activation_checkpointing", "checkpoint_every", "lora_rank", "lora_alpha"),
        *("lora_dropout", "lora_targets", "quantization", "double_quant", "quant_storage"),
        *("kbit_prepare", "loss", "micro_batch_size", "sequence_length", "effective_batch_size"),
        *("compile", "offload", "allocator", "use_dora", "use_rslora", "modules_to_save"),
        *("frozen_layers", "adapter_dtype"),
    }
)
_ENGINES = frozenset(
    {
        *("sharding", "world_size", "gpus_per_node", "fsdp_version", "prefetch", "reduce_dtype"),
        *("bucket_elements", "sync_each_batch"),
    }
)
_OF_TRL = frozenset(
    {
        *("objective", "reference", "completion_length", "num_generations"),
        *("packing", "document_length", "padding"),
    }
)
_MORE = {
    "trainer": _ENGINES | {"optimizer_rank", "fp8"},
    "trl": _ENGINES | _OF_TRL | {"optimizer_rank", "fp8"},
    "pytorch": frozenset({"fp8"}),
    "unsloth": frozenset({"library"}),
}

_WITH_ENGINE = ("trainer", "trl")  # their Trainer has the Accelerator that the conversion needs


def check_said(rung: StackRung, target: str) -> None:
    """Check that a script can say all of a rung. Scripts train a language model on text.

    Raises:
        OomDoctorError: the rung has a key or a task that scripts do not express (exit 3).
    """
    config = rung.config
    if rung.task != "causal-lm":
        raise not_in(target, f"the task {rung.task}", "exports train causal language models")
    if config.loss == "chunked" and target != "trl":
        raise not_in(target, "loss = chunked", "use --to trl")
    if config.fp8 == "transformer_engine" and target not in _WITH_ENGINE:
        raise not_in(target, "fp8 = transformer_engine", "use --to trainer or --to trl")
    said, plain = _SAID | _MORE[target], TrainConfig()
    for key in (field.name for field in fields(TrainConfig)):
        value = getattr(config, key)
        if key in said or value == getattr(plain, key) or _means_nothing(config, key):
            continue
        raise not_in(target, f"{key} = {value}", _instead(key, value))


def _means_nothing(config: TrainConfig, key: str) -> bool:
    return (
        (key == "document_length" and config.packing != "packed")
        or (key == "num_generations" and config.objective != "grpo")
        or (key == "optimizer_rank" and not low_rank(config))
    )


def _instead(key: str, value: object) -> str | None:
    if key == "library":
        return f"use --to {value}"
    if key in _OF_TRL:
        return "use --to trl"
    return "use --to trainer or --to trl" if key in _MORE["trainer"] else None
