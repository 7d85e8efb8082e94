"""Recorded errors of predictions, and the uncertainty that follows for a new one."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from oomdoctor.records.rung.choices import Method

Origin = Literal["measured", "published"]
Reference = Literal["emulated", "published"]
PeakMetric = Literal["allocated", "reserved"]
Slower = Literal["device", "host"]


@dataclass(frozen=True, slots=True)
class PeakErrorRecord:
    """Errors of peaks of one kind, relative to those they were compared with.

    `reference` is "emulated" for predictions beside the same rungs on the emulated GPU, "published"
    for the emulated GPU beside runs of real ones that others published. What is None is of every
    kind: `method`, `compute_capability` of the cards, `torch` (major and minor number: "2.12").
    `p95` is the 95th percentile of the absolute errors.
    """

    reference: Reference
    metric: PeakMetric
    method: Method | None
    compute_capability: str | None
    torch: str | None
    count: int
    signed_median: float
    absolute_median: float
    p95: float


@dataclass(frozen=True, slots=True)
class SpeedErrorRecord:
    """Errors of estimated tokens per second of one kind, relative to the measured ones.

    `compute_capability` is that of the cards. `slower` is what limited the speed by the estimate:
    the device, or the host that launches its operators. `p95` is the 95th percentile of the
    absolute errors.
    """

    origin: Origin
    compute_capability: str
    slower: Slower
    count: int
    signed_median: float
    absolute_median: float
    p95: float


@dataclass(frozen=True, slots=True)
class Uncertainty:
    """A prediction may be off by `share` of itself either way; None if nothing is recorded.

    `evidence` is a sentence on where the figure comes from.
    """

    share: float | None
    evidence: str
