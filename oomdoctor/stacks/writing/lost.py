"""What the file of a program cannot hold of a rung: found by reading it back."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from typing import Any

from oomdoctor.errors import OomDoctorError
from oomdoctor.records.config import TrainConfig, is_fsdp, is_zero, scored_tokens
from oomdoctor.records.rung.adapters import without_usual_dtype
from oomdoctor.records.user_training import Document, FormatName
from oomdoctor.stacks.names.programs import TABLES
from oomdoctor.stacks.names.row import listed, nested, written
from oomdoctor.stacks.names.techniques import low_rank
from oomdoctor.stacks.reading.finish import Overrides, finished
from oomdoctor.stacks.reading.merge import draft_of

_BY_LAUNCHER = "accelerate launch or torchrun says it"
_REASONS: Mapping[str, str] = {
    "world_size": _BY_LAUNCHER,
    "gpus_per_node": _BY_LAUNCHER,
    "allocator": "set PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True",
    "kbit_prepare": "the program prepares quantized models in its own way",
    "adapter_dtype": "the program decides it",
    "document_length": "the data decides it",
    "padding": "the lengths of your rows decide it",
}
# Launchers hold only these keys; the training's own settings hold the others.
_HELD: Mapping[str, frozenset[str]] = {
    "accelerate": listed("sharding world_size offload fsdp_version prefetch compile fp8"),
    "deepspeed": listed(
        """
        sharding offload bucket_elements reduce_dtype prefetch micro_batch_size
        effective_batch_size world_size
        """
    ),
}


@dataclass(frozen=True, slots=True)
class Lost:
    """A key whose value a file does not hold. `read` is what it says instead."""

    key: str
    value: object
    read: object
    reason: str | None


def lost(config: TrainConfig, program: FormatName, settings: Mapping[str, object]) -> list[Lost]:
    """The keys that a program would read otherwise from `settings`, its nested file."""
    document = Document("", settings, asked=program)
    overrides = Overrides(gpus=config.world_size if config.world_size > 1 else None)
    try:
        found = finished(draft_of([document]), dict, overrides).config
    except OomDoctorError as error:
        return [Lost("sharding", config.sharding, "none", error.message)]
    wanted, found = comparable(config), comparable(found)
    held = _HELD.get(program)
    return [
        Lost(name, getattr(wanted, name), getattr(found, name), _REASONS.get(name))
        for name in (field.name for field in fields(TrainConfig))
        if getattr(wanted, name) != getattr(found, name) and (held is None or name in held)
    ]


def settings_of(config: TrainConfig, program: FormatName) -> dict[str, Any]:
    """The settings of a rung as a program nests them."""
    return nested(written(TABLES[program], config))


def comparable(config: TrainConfig) -> TrainConfig:
    """The configuration without values that mean nothing in it."""
    plain = TrainConfig()
    unused: list[str] = []
    if config.method == "full":
        unused += ["lora_rank", "lora_alpha", "lora_dropout", "lora_targets"]
    if config.quantization != "nf4":
        unused += ["double_quant", "quant_storage"]
    if config.method != "qlora":
        unused += ["kbit_prepare"]
    if config.activation_checkpointing != "every_n":
        unused += ["checkpoint_every"]
    if config.packing != "packed":
        unused += ["document_length"]
    if config.sharding != "hybrid":
        unused += ["gpus_per_node"]
    if not is_fsdp(config):
        unused += ["fsdp_version"]
    if not low_rank(config):
        unused += ["optimizer_rank"]
    if config.sharding == "none":
        unused += ["prefetch", "reduce_dtype", "sync_each_batch"]
    if config.objective != "grpo":
        unused += ["num_generations"]
    settings: dict[str, Any] = {key: getattr(plain, key) for key in unused}
    if config.objective in ("dpo", "grpo"):
        settings["completion_length"] = scored_tokens(config)  # 0 is half of the sequence
    if is_zero(config) and config.autocast_dtype != "none":
        # DeepSpeed makes the weights 16-bit itself.
        settings |= {"weights_dtype": config.autocast_dtype, "autocast_dtype": "none"}
    return without_usual_dtype(replace(config, **settings))
