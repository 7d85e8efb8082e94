"""The NVIDIA card with the least memory that has room for a training."""

from __future__ import annotations

from collections.abc import Iterator

from oomdoctor.analysis.memory.overhead import shares_host_memory
from oomdoctor.records.planned.plan import PlanRequest
from oomdoctor.records.result import ProbeResult
from oomdoctor.runs.devices.cards import Card, cards_of

MODERN = (8, 0)
"""Kernels for bfloat16 and flash attention need it; a run on such a card may use them."""


def nvidia_cards(least: tuple[int, int], headroom: float = 0.0, ranks: int = 1) -> Iterator[Card]:
    """The cards from a compute capability on, the smallest first; none that shares host memory."""
    for card in cards_of(PlanRequest((), all_gpus=True), headroom, ranks):
        if card.facts is None or shares_host_memory(card.facts):
            continue
        if capability(card.capability) >= least:
            yield card


def capability(text: str) -> tuple[int, int]:
    """A compute capability such as 8.6 as numbers that compare."""
    major, minor = (int(part) for part in text.split("."))
    return major, minor


def room_for(row: ProbeResult, own: str | None, headroom: float) -> str | None:
    """The name of the smallest card with room for the peak of a rung that was simulated.

    `own` is the compute capability of the card that was too small. None if the peak is not known,
    or if there is no such card.
    """
    measured, peak = row.measurement, row.peak_device_bytes
    if measured is None or peak is None:
        return None
    tensors = peak - (measured.overhead_bytes or 0)
    least = MODERN if own is None or capability(own) >= MODERN else (0, 0)
    cards = nvidia_cards(least, headroom, row.config.world_size)
    return next((c.name for c in cards if c.usable_bytes - c.context.likely >= tensors), None)
