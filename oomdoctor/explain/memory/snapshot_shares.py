"""What a change saves of the memory that a snapshot shows: a share of what was there."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
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
class Saving:
    """Bytes of a snapshot that a change frees; `at_least` if it may free more.

    `basis` is "rule" if a part of it is a rule of thumb.
    """

    size_bytes: int
    text: str
    at_least: bool = False
    basis: Basis = "arithmetic"


def saving(held: CategoryBytes, changes: Mapping[str, Any], batch: int | None) -> Saving | None:
    """What these changes of a training free of what was held; None if a snapshot cannot tell.

    `changes` has keys of a rung; `batch` is the micro-batch size, if it is known.
    """
    parts = list(_parts(held, changes, batch))
    counted = [part for part in parts if part.size_bytes]
    if changes.get("quantization"):
        # How much of the weights can be quantized depends on the model: embeddings cannot.
        counted += [Saving(0, "4-bit weights save more", at_least=True)] if counted else []
        parts = counted
    return _sum(counted) if parts else None


def _sum(parts: Sequence[Saving]) -> Saving:
    return Saving(
        sum(part.size_bytes for part in parts),
        ", ".join(part.text for part in parts),
        any(part.at_least for part in parts),
        "rule" if any(part.basis == "rule" for part in parts) else "arithmetic",
    )


def _parts(held: CategoryBytes, changes: Mapping[str, Any], batch: int | None) -> Iterator[Saving]:
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


def _states(held: CategoryBytes, optimizer: str) -> Iterator[Saving]:
    row = optimizer_named(optimizer)
    if row is None:
        return
    if row.paged or row.moments == 0:
        yield _part(held, "optimizer")
    elif row.eight_bit:
        yield _part(held, "optimizer", _EIGHT_BITS, at_least=True)


def halved(held: CategoryBytes) -> Saving | None:
    """What half the batch or half the length frees."""
    parts = [_part(held, "activations", 0.5), _part(held, "logits", 0.5)]
    parts = [part for part in parts if part.size_bytes]
    return _sum(parts) if parts else None


def _part(
    held: CategoryBytes, category: BlockCategory, share: float = 1.0, *, at_least: bool = False
) -> Saving:
    of = "all" if share == 1 else f"{'at least ' if at_least else ''}{share:.0%}"
    return Saving(round(held.of(category) * share), _of(of, held, category), at_least)


def _usual(held: CategoryBytes, category: BlockCategory, share: float) -> Saving:
    """What the change usually frees; it may be more."""
    text = _of(f"about {share:.0%}", held, category)
    return Saving(round(held.of(category) * share), text, at_least=True, basis="rule")


def _of(share: str, held: CategoryBytes, category: BlockCategory) -> str:
    size = format_bytes(held.of(category))
    return f"{share} of {size} of {CATEGORY_WORDS[category]} in the snapshot"
