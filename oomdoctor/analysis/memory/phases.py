"""The peaks of a training step by phase, the phase with the highest, and bytes by category."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TypeVar, cast

from oomdoctor.records.facts.categories import BREAKDOWN, OTHER, TABLE
from oomdoctor.records.job.measurement import Breakdown, PhaseMemory, PhaseName

Key = TypeVar("Key")
Window = tuple[str, str]  # step, phase

Parts = dict[str, int]
Course = list[tuple[str, Parts]]
"""What is held at moments of a load and a step, in their order, with the phase of each."""


def peak_phase(phases: dict[str, PhaseMemory]) -> PhaseName:
    """The phase with the highest peak."""
    peaks = {
        name: (memory.peak_allocated_bytes, memory.peak_reserved_bytes or 0)
        for name, memory in phases.items()
    }
    return cast(PhaseName, max(peaks, key=peaks.__getitem__))


def worst_of(peaks: Iterable[tuple[Key, PhaseMemory]]) -> dict[Key, PhaseMemory]:
    """The highest peaks under each key."""
    worst: dict[Key, PhaseMemory] = {}
    for key, memory in peaks:
        before, reserved = worst.get(key, memory), memory.peak_reserved_bytes
        worst[key] = PhaseMemory(
            max(before.peak_allocated_bytes, memory.peak_allocated_bytes),
            None if reserved is None else max(before.peak_reserved_bytes or 0, reserved),
        )
    return worst


def breakdown(parts: Mapping[str, int], peak: int) -> Breakdown:
    """The peak by category; what the allocator holds beyond the parts is "other".

    Those are inputs, temporaries, rounding, blocks that are not split, and workspaces of libraries.
    """
    sizes = dict.fromkeys(BREAKDOWN, 0) | {OTHER: peak - sum(parts.values())}
    for name, size in parts.items():
        sizes[TABLE[name].within or name] += size
    return Breakdown(**{f"{name}_bytes": size for name, size in sizes.items()})


def together(base: Parts, more: Parts) -> Parts:
    """The sum of two by category, in the order of the first."""
    names = (*base, *(name for name in more if name not in base))
    return {name: base.get(name, 0) + more.get(name, 0) for name in names}


def size_of(parts: Parts) -> int:
    """The bytes of all categories."""
    return sum(parts.values())
