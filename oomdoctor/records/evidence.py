"""Recorded errors of predictions, and the uncertainty that follows for a new one."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from oomdoctor.records.config import Method

Origin = Literal["measured", "published"]
PeakMetric = Literal["allocated", "reserved", "device"]
Slower = Literal["device", "host"]


@dataclass(frozen=True, slots=True)
class ErrorRecord:
    """Errors of predicted peaks of one kind, relative to the measured bytes.

    `origin` is "measured" for our own runs with the same libraries, "published" for runs that
    others reported. `p95` is the 95th percentile of the absolute errors.
    """

    origin: Origin
    method: Method
    metric: PeakMetric
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
