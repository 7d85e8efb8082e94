"""How much memory a change frees, and what it saves of what a snapshot shows: a share of that."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from oomdoctor.records.facts.optimizers import optimizer_named
from oomdoctor.records.job.measurement import CATEGORY_WORDS, BlockCategory, CategoryBytes
from oomdoctor.records.report.diagnosis import Basis
from oomdoctor.units import format_bytes

# Rules of thumb. Checkpointing keeps the input of each layer: what it frees depends on the model.
_CHECKPOINTED = 0.4
_ADAPTERS = 0.95  # of gradients and states: adapters have about 1% of the parameters
# 8-bit states take a quarter of 32-bit ones and half of 16-bit ones; which they are is not known.
_EIGHT_BITS = 0.5


@dataclass(frozen=True, slots=True)
class Effect:
    """How many bytes a change frees (None: cannot be computed), on what basis, and the arithmetic.

    `basis` is "rule" if a part of it is a rule of thumb. `at_least`: it may free more, because only
    a part of its effect was counted. `sets` are the keys of a rung that the change sets; if the
    training is known, to other values.
    """

    frees_bytes: int | None
    basis: Basis
    arithmetic: str | None
    at_least: bool = False
    sets: Mapping[str, Any] = field(default_factory=dict)


def saving(held: CategoryBytes, changes: Mapping[str, Any], batch: int | None) -> Effect | None:
    """What these changes of a training free of what was held; None if a snapshot cannot tell.

    `changes` has keys of a rung; `batch` is the micro-batch size, if it is known.
    """
    parts = list(_parts(held, changes, batch))
    counted = [part for part in parts if part.frees_bytes]
    if changes.get("quantization"):
        # How much of the weights can be quantized depends on the model: embeddings cannot.
        more = Effect(0, "arithmetic", "4-bit weights save more", at_least=True)
        counted += [more] if counted else []
        parts = counted
    return _sum(counted) if parts else None


def _sum(parts: Sequence[Effect]) -> Effect:
    return Effect(
        sum(part.frees_bytes or 0 for part in parts),
        "rule" if any(part.basis == "rule" for part in parts) else "arithmetic",
        ", ".join(part.arithmetic or "" for part in parts),
        any(part.at_least for part in parts),
    )


def _parts(held: CategoryBytes, changes: Mapping[str, Any], batch: int | None) -> Iterator[Effect]:
    adapters = changes.get("method") in ("lora", "qlora")
    if changes.get("loss", "default") != "default":
        yield _part(held, "logits")
    if changes.get("activation_checkpointing", "none") != "none":
        yield _usual(held, "activations", _CHECKPOINTED)
    if "micro_batch_size" in changes and batch:
        share = 1 - changes["micro_batch_size"] / batch
        yield _part(held, "activations", share)
        yield _part(held, "logits", share)
    if adapters:
        yield _usual(held, "gradients", _ADAPTERS)
        yield _usual(held, "optimizer", _ADAPTERS)
    elif changes.get("offload") in ("optimizer", "parameters"):
        yield _part(held, "optimizer")
    elif "optimizer" in changes:
        yield from _states(held, str(changes["optimizer"]))


def _states(held: CategoryBytes, optimizer: str) -> Iterator[Effect]:
    row = optimizer_named(optimizer)
    if row is None:
        return
    if row.paged or row.moments == 0:
        yield _part(held, "optimizer")
    elif row.eight_bit:
        yield _part(held, "optimizer", _EIGHT_BITS, at_least=True)


def halved(held: CategoryBytes) -> Effect | None:
    """What half the batch or half the length frees."""
    parts = [_part(held, "activations", 0.5), _part(held, "logits", 0.5)]
    parts = [part for part in parts if part.frees_bytes]
    return _sum(parts) if parts else None


def _part(
    held: CategoryBytes, category: BlockCategory, share: float = 1.0, *, at_least: bool = False
) -> Effect:
    of = "all" if share == 1 else f"{'at least ' if at_least else ''}{share:.0%}"
    text = _of(of, held, category)
    return Effect(round(held.of(category) * share), "arithmetic", text, at_least)


def _usual(held: CategoryBytes, category: BlockCategory, share: float) -> Effect:
    """What the change usually frees; it may be more."""
    text = _of(f"about {share:.0%}", held, category)
    return Effect(round(held.of(category) * share), "rule", text, at_least=True)


def _of(share: str, held: CategoryBytes, category: BlockCategory) -> str:
    size = format_bytes(held.of(category))
    return f"{share} of {size} of {CATEGORY_WORDS[category]} in the snapshot"
