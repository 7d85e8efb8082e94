"""Changes to a rung that does not fit which may make it fit, in the order of what they cost.

What a change frees is estimated from the simulated peak, as an upper bound. Only changes that may
be enough are worth a simulation, which then decides.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import combinations
from typing import Any

from oomdoctor.records.config import TrainConfig, steps_in_backward
from oomdoctor.records.facts.optimizers import OPTIMIZERS
from oomdoctor.records.measurement import Breakdown
from oomdoctor.records.result import ProbeResult
from oomdoctor.units import format_bytes

_PAGED = "paged_adamw_8bit"
_STEP_TOKENS = 64
_LEAST_TOKENS = 128
LEAST_PART = 4  # rows shorter than this part of the length that was asked for are no answer
_MARGIN = 0.97  # of the length that a straight line promises


@dataclass(frozen=True, slots=True)
class Change:
    """New settings of a rung, what they are called, and the most bytes they can free."""

    words: str
    settings: Mapping[str, Any]
    frees_bytes: int

    def of(self, config: TrainConfig) -> TrainConfig:
        """The configuration with the change."""
        return replace(config, **self.settings)


def changes_of(
    row: ProbeResult, usable_bytes: int, unavailable: frozenset[str] = frozenset()
) -> tuple[Change, ...]:
    """What may make a simulated rung fit, cheapest first; empty if nothing can.

    First what keeps model, method and data (alone, then combined), then a shorter sequence, then
    both. Changes of the settings in `unavailable` are left out.
    """
    measured, parts = row.measurement, row.breakdown
    if measured is None or parts is None or row.peak_device_bytes is None:
        return ()
    short = row.peak_device_bytes - usable_bytes
    free = [c for c in _same_training(row, parts) if not unavailable & c.settings.keys()]
    found = [change for change in free if change.frees_bytes >= short]
    if not found:
        found = list(_combined(free, short))
    shorter = _shorter(row, parts, usable_bytes, 0)
    found += [shorter] if shorter is not None else []
    most = [change for change in _compatible(free) if change.frees_bytes]
    if most:
        freed = sum(change.frees_bytes for change in most)
        shorter = _shorter(row, parts, usable_bytes, freed)
        found += [_joined([*most, shorter])] if shorter is not None else []
    return tuple(found)


def liger_alone(row: ProbeResult, usable_bytes: int) -> Change | None:
    """Liger's loss, if the logits at the peak are more than the rung is short by."""
    parts = row.breakdown
    if parts is None or row.peak_device_bytes is None or row.config.loss != "default":
        return None
    change = Change("Liger's loss", {"loss": "liger"}, parts.logits_bytes)
    return change if row.peak_device_bytes - change.frees_bytes <= usable_bytes else None


def still_shorter(
    change: Change, row: ProbeResult, tried: ProbeResult, usable: int
) -> Change | None:
    """After a shorter sequence did not fit: the length on the line through both peaks."""
    before, after = row.peak_device_bytes, tried.peak_device_bytes
    length, shorter = row.sequence_length, tried.sequence_length
    if before is None or after is None or shorter >= length or after >= before:
        return None
    fitting = shorter - (after - usable) * (length - shorter) / (before - after)
    tokens = int(fitting * _MARGIN) // _STEP_TOKENS * _STEP_TOKENS
    if not least_tokens(length) <= tokens < shorter:
        return None
    words = change.words.replace(f"{shorter:,}", f"{tokens:,}")
    return Change(words, {**change.settings, "sequence_length": tokens}, before - usable)


def least_tokens(length: int) -> int:
    """The shortest rows that are worth a word where `length` was asked for."""
    return max(_LEAST_TOKENS, -(-length // LEAST_PART))


def why_nothing_fits(row: ProbeResult, usable_bytes: int, tried: Sequence[str]) -> str:
    """Why no change was found for a rung, in words."""
    parts, measured = row.breakdown, row.measurement
    overhead = (measured.overhead_bytes or 0) if measured is not None else 0
    if parts is not None:
        weights, gradients = parts.weights_bytes, parts.gradients_bytes
        alone = "weights" if weights + overhead > usable_bytes else "weights and gradients"
        size = weights if alone == "weights" else weights + gradients
        if size + overhead > usable_bytes:
            return f"nothing here makes it fit: its {alone} alone need {format_bytes(size)}"
    return f"not even with {', or '.join(tried)}" if tried else "no change is enough"


def _same_training(row: ProbeResult, parts: Breakdown) -> Iterator[Change]:
    """Changes that keep the model, the method and the data, cheapest first."""
    config, measured = row.config, row.measurement
    assert measured is not None
    if config.allocator == "default" and measured.peak_reserved_bytes is not None:
        held = measured.peak_reserved_bytes - measured.peak_allocated_bytes
        yield Change("expandable_segments", {"allocator": "expandable_segments"}, held)
    if config.loss == "default" and parts.logits_bytes:
        yield Change("Liger's loss", {"loss": "liger"}, parts.logits_bytes)
    grows = parts.activations_bytes + parts.logits_bytes
    size = row.micro_batch_size or 1
    if size > 1 and not steps_in_backward(config):
        less = grows * (size - 1) // size
        yield Change("micro-batch size 1", {"micro_batch_size": 1}, less)
    if config.attention == "eager":
        yield Change("SDPA attention", {"attention": "sdpa"}, parts.activations_bytes)
    if config.activation_checkpointing == "none":
        settings = {"activation_checkpointing": "full"}
        yield Change("activation checkpointing", settings, parts.activations_bytes)
    known = OPTIMIZERS.get(config.optimizer)
    if parts.optimizer_bytes and config.offload == "none":
        if known is not None and known.moments == 2 and config.optimizer != _PAGED:
            yield Change("paged 8-bit AdamW", {"optimizer": _PAGED}, parts.optimizer_bytes)
        if config.optimizer != _PAGED:
            yield Change("optimizer offload", {"offload": "optimizer"}, parts.optimizer_bytes)


def _combined(changes: Sequence[Change], short: int) -> Iterator[Change]:
    """The smallest combination that may be enough; of equal ones the cheapest."""
    for count in range(2, len(changes) + 1):
        for chosen in combinations(changes, count):
            joined = _joined(chosen)
            if joined.frees_bytes >= short and len(_compatible(chosen)) == count:
                yield joined
                return


def _compatible(changes: Sequence[Change]) -> list[Change]:
    """The changes without those that free the same bytes as an earlier one."""
    kept: list[Change] = []
    for change in changes:
        states = {"optimizer", "offload"}
        taken = {key for other in kept for key in other.settings}
        if not (states & set(change.settings) and states & taken):
            kept.append(change)
    return kept


def _joined(changes: Sequence[Change]) -> Change:
    settings: dict[str, Any] = {}
    for change in changes:
        settings |= change.settings
    return Change(
        " + ".join(change.words for change in changes),
        settings,
        sum(change.frees_bytes for change in changes),
    )


def _shorter(row: ProbeResult, parts: Breakdown, usable: int, freed: int) -> Change | None:
    """A length at which the rung should fit, on the line through what does not grow with it."""
    assert row.measurement is not None and row.peak_device_bytes is not None
    stays = parts.weights_bytes + parts.gradients_bytes + parts.optimizer_bytes
    stays += row.measurement.overhead_bytes or 0
    grows = row.peak_device_bytes - freed - stays
    if grows <= 0 or stays >= usable:
        return None
    length = row.sequence_length
    fitting = int(min(1.0, (usable - stays) / grows) * length * _MARGIN)
    tokens = fitting // _STEP_TOKENS * _STEP_TOKENS
    if not least_tokens(length) <= tokens < length:
        return None
    frees = grows * (length - tokens) // length
    return Change(f"sequence length {tokens:,}", {"sequence_length": tokens}, frees)
