"""How memory rises and falls while a rung loads and trains. Sizes are integers in bytes."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class CurvePhase:
    """A phase of the load or of a step ("first", "steady"), which begins with this moment."""

    step: str
    phase: str
    moment: int


@dataclass(frozen=True, slots=True)
class MemoryCurve:
    """Allocated bytes over a load and the steps after it, or over one step, at some moments.

    Of the `events` (allocations and releases, in order) each moment is the highest of a stretch:
    `event` has its number. Moments on a line between others are left out, so from one to the next
    memory went straight, within 0.5% of the peak. `allocated_bytes` are what the allocator had
    given out. `by_category` says for what, without categories that are never there; what it leaves
    is rounding, and memory that no tensor shows. `peak` is the moment of the peak, which is exact.
    """

    events: int
    event: tuple[int, ...]
    allocated_bytes: tuple[int, ...]
    by_category: Mapping[str, tuple[int, ...]]
    phases: tuple[CurvePhase, ...]
    peak: int

    def rest_bytes(self, moment: int) -> int:
        """What is allocated beyond the categories."""
        return self.allocated_bytes[moment] - sum(
            sizes[moment] for sizes in self.by_category.values()
        )
