"""A training as a rung, so that it can be simulated."""

from __future__ import annotations

from dataclasses import fields
from typing import Any

from oomdoctor.explain.training.assumed import Training
from oomdoctor.explain.training.known import Setup
from oomdoctor.records.config import TrainConfig
from oomdoctor.records.diagnosis import SettingValue
from oomdoctor.records.facts.architectures import ROLES, ROLES_OF
from oomdoctor.records.facts.optimizers import optimizer_named
from oomdoctor.records.rung.faults import config_faults


def rung_of(training: Training, setup: Setup) -> TrainConfig | None:
    """The rung that trains the same; None if batch or length is unknown, or no rung can do it.

    Trainings that are sharded over several GPUs, or that DeepSpeed keeps in two precisions, are
    none.
    """
    batch, length = training.micro_batch_size, training.sequence_length
    optimizer = optimizer_named(training.optimizer)
    if batch is None or length is None or optimizer is None:
        return None
    if training.stage or training.master_weights:
        return None
    quantized = training.method == "qlora"
    values: dict[str, Any] = {
        "method": training.method,
        "weights_dtype": training.weights_dtype,
        "autocast_dtype": _autocast(training, setup),
        "optimizer": optimizer.alias_of or optimizer.name,
        "attention": training.attention,
        "activation_checkpointing": "full" if training.checkpointing else "none",
        "lora_rank": training.lora_rank,
        "lora_targets": _targets(setup.lora_targets),
        "quantization": training.quantization if quantized else "none",
        "kbit_prepare": training.kbit_prepare if quantized else "peft",
        "loss": "liger" if training.liger else "default",
        "micro_batch_size": batch,
        "sequence_length": length,
        "effective_batch_size": batch * training.accumulation_steps,
        "offload": "optimizer" if training.offload_optimizer else "none",
        "allocator": "expandable_segments" if setup.expandable_segments else "default",
    }
    config = TrainConfig(**values)
    return None if config_faults(config) else config


def rung_changes(before: TrainConfig | None, after: TrainConfig | None) -> dict[str, SettingValue]:
    """The keys of a recipe that lead from one rung to another; {} if one is unknown."""
    if before is None or after is None:
        return {}
    pairs = {f.name: (getattr(before, f.name), getattr(after, f.name)) for f in fields(TrainConfig)}
    return {name: new for name, (old, new) in pairs.items() if new != old}


def _targets(roles: tuple[str, ...] | None) -> str | tuple[str, ...]:
    """The modules with adapters, by the names that most models give them."""
    if roles is None or set(roles) >= set(ROLES):
        return "all-linear"
    names = {role: name for name, found in reversed(ROLES_OF.items()) for role in found[:1]}
    return tuple(names[role] for role in roles)


def _autocast(training: Training, setup: Setup) -> str:
    if not training.autocast:
        return "none"
    return "float16" if setup.autocast_dtype == "float16" else "bfloat16"
