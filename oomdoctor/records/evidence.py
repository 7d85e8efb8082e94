"""How far predictions were from measurements, as recorded, and what follows for a new one."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from oomdoctor.records.config import Method

PeakMetric = Literal["allocated", "reserved", "device"]


@dataclass(frozen=True, slots=True)
class ErrorRecord:
    """Errors of predictions of one kind, as shares of the measured bytes.

    `origin` is "measured" for runs of our own with the same libraries, "published" for runs that
    others reported. `p95` is the 95th percentile of the absolute errors.
    """

    origin: Literal["measured", "published"]
    method: Method
    metric: PeakMetric
    count: int
    signed_median: float
    absolute_median: float
    p95: float


@dataclass(frozen=True, slots=True)
class Uncertainty:
    """A prediction may be off by `share` of its bytes either way; None where nothing is recorded.

    `evidence` is a sentence on what the figure rests on.
    """

    share: float | None
    evidence: str
