"""What a change saves of the memory that a snapshot shows: a share of what was there."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from oomdoctor.records.facts.optimizers import optimizer_named
from oomdoctor.records.inside.categories import CategoryBytes
from oomdoctor.units import format_bytes

# Checkpointing keeps the input of each layer: what it frees depends on the model.
_CHECKPOINTED = 0.4
# 8-bit states take a quarter of 32-bit ones and half of 16-bit ones; which they are is not known.
_EIGHT_BITS = 0.5
_ADAPTERS = 0.95  # of gradients and states: adapters have about 1% of the parameters
_FOUR_BITS = 0.6  # of 16-bit weights; embeddings and norms stay


@dataclass(frozen=True, slots=True)
class Saving:
    """Bytes of a snapshot that a change frees; `at_least` if it may free more."""

    size_bytes: int
    text: str
    at_least: bool


def saving(held: CategoryBytes, changes: Mapping[str, Any], batch: int | None) -> Saving | None:
    """What these changes of a training free of what was held; None if a snapshot cannot tell.

    `changes` has the fields of `Training`; `batch` is the micro-batch size, if it is known.
    """
    parts = list(_parts(held, changes, batch))
    if not parts:
        return None
    parts = [part for part in parts if part.size_bytes]
    return Saving(
        sum(part.size_bytes for part in parts),
        ", ".join(part.text for part in parts),
        any(part.at_least for part in parts),
    )


def _parts(held: CategoryBytes, changes: Mapping[str, Any], batch: int | None) -> Iterator[Saving]:
    adapters = changes.get("method") in ("lora", "qlora")
    if changes.get("liger"):
        yield _part("logits", held.logits_bytes)
    if changes.get("checkpointing"):
        yield _part("activations", held.activations_bytes, _CHECKPOINTED, at_least=True)
    if "micro_batch_size" in changes and batch:
        share = 1 - changes["micro_batch_size"] / batch
        yield _part("activations", held.activations_bytes, share)
        yield _part("logits", held.logits_bytes, share)
    if adapters:
        yield _part("gradients", held.gradients_bytes, _ADAPTERS, at_least=True)
        yield _part("optimizer states", held.optimizer_bytes, _ADAPTERS, at_least=True)
    elif changes.get("offload_optimizer"):
        yield _part("optimizer states", held.optimizer_bytes)
    elif "optimizer" in changes:
        yield from _states(held, str(changes["optimizer"]))
    if changes.get("quantization"):
        yield _part("weights", held.weights_bytes, _FOUR_BITS, at_least=True)


def _states(held: CategoryBytes, optimizer: str) -> Iterator[Saving]:
    row = optimizer_named(optimizer)
    if row is None:
        return
    if row.paged or row.moments == 0:
        yield _part("optimizer states", held.optimizer_bytes)
    elif row.eight_bit:
        yield _part("optimizer states", held.optimizer_bytes, _EIGHT_BITS, at_least=True)


def halved(held: CategoryBytes) -> Saving | None:
    """What half the batch or half the length frees."""
    sizes = (("activations", held.activations_bytes), ("logits", held.logits_bytes))
    parts = [_part(name, size, 0.5) for name, size in sizes if size]
    if not parts:
        return None
    text = ", ".join(part.text for part in parts)
    return Saving(sum(part.size_bytes for part in parts), text, at_least=False)


def _part(name: str, size: int, share: float = 1.0, *, at_least: bool = False) -> Saving:
    freed = round(size * share)
    of = "all" if share == 1 else f"{'at least ' if at_least else ''}{share:.0%}"
    return Saving(freed, f"{of} of {format_bytes(size)} of {name} in the snapshot", at_least)
