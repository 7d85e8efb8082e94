"""Changes with other aims than to save memory: to run with what is installed, or to run faster."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import replace
from typing import Any

from oomdoctor.analysis.changes.sets import ChangeSet
from oomdoctor.analysis.changes.table import BY_KEY, Change, Tier
from oomdoctor.records.configuration.config import TrainConfig, joins_rows
from oomdoctor.records.configuration.faults import config_faults
from oomdoctor.records.facts.choices import AUTO
from oomdoctor.records.facts.optimizers import OPTIMIZERS


def to_run(config: TrainConfig) -> tuple[ChangeSet, ...]:
    """What may run where the rung does not, because a package is missing here."""
    loss = _of(config, "the usual loss", loss="default")
    attention = _of(config, "SDPA attention", attention="sdpa")
    sets = [loss] if config.loss != "default" else []
    sets += [attention] if config.attention not in ("sdpa", "eager") else []
    both = replace(config, loss="default", attention="sdpa")
    if len(sets) == 2:
        sets.append(ChangeSet((*loss.changes, *attention.changes), (0, 0), both))
    return _possible(sets, config)


def to_speed_up(config: TrainConfig) -> tuple[ChangeSet, ...]:
    """What may make a rung that fits faster, with the same effective batch and length."""
    return _possible(_faster(config), config)


def _faster(config: TrainConfig) -> Iterator[ChangeSet]:
    yield _of(config, "another micro-batch", micro_batch_size=AUTO)
    if config.activation_checkpointing != "none":
        yield _of(config, "no activation checkpointing", activation_checkpointing="none")
        if config.activation_checkpointing != "every_n":
            yield _of(config, "activation checkpointing of every second layer",
                      activation_checkpointing="every_n", checkpoint_every=2)  # fmt: skip
    yield from _saving(config, "sdpa")
    if joins_rows(config):
        yield _of(config, "FlashAttention 2", attention="flash_attention_2")
    if config.offload != "none":
        yield _of(config, "no offload", offload="none")
    row = OPTIMIZERS.get(config.optimizer)
    if row is not None and row.moments == 2:
        yield _of(config, "fused AdamW", optimizer="adamw_torch_fused")
    yield from _saving(config, "liger")
    yield from _saving(config, "chunked")
    if config.sharding in ("fsdp", "zero3"):
        instead = "fsdp_grad_op" if config.sharding == "fsdp" else "zero2"
        yield _of(config, f"{instead} instead of {config.sharding}", sharding=instead)
    if config.weights_dtype == "float32" and config.autocast_dtype == "none":
        yield _of(config, "bf16 mixed precision", autocast_dtype="bfloat16")
    if config.method == "qlora":
        yield _of(config, "LoRA without quantization", method="lora", quantization="none")


def _saving(config: TrainConfig, key: str) -> Iterator[ChangeSet]:
    """A change of the table that also saves time."""
    change = BY_KEY[key]
    for step in change.steps(config):
        yield ChangeSet((change,), (0,), replace(config, **step))


def _of(config: TrainConfig, words: str, **settings: Any) -> ChangeSet:
    change = Change(words, words, lambda _: iter((settings,)), frozenset(), words, Tier.SAME)
    return ChangeSet((change,), (0,), replace(config, **settings))


def _possible(sets: Iterable[ChangeSet], config: TrainConfig) -> tuple[ChangeSet, ...]:
    """Those that change something and do not contradict themselves, each once."""
    kept: dict[str, ChangeSet] = {}
    for changes in sets:
        if changes.config != config and not config_faults(changes.config):
            kept.setdefault(changes.config.key(), changes)
    return tuple(kept.values())
