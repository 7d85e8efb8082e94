"""How far predictions were from measurements, as recorded, and what follows for a new one."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from oomdoctor.records.config import Method

Origin = Literal["measured", "published"]
PeakMetric = Literal["allocated", "reserved", "device"]
Slower = Literal["device", "host"]


@dataclass(frozen=True, slots=True)
class ErrorRecord:
    """Errors of predictions of one kind, as shares of the measured bytes.

    `origin` is "measured" for runs of our own with the same libraries, "published" for runs that
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
    """Errors of predicted tokens a second of one kind, as shares of the measured ones.

    `compute_capability` is the cards', `slower` what the others waited for by the prediction: the
    device, or the host that issues its operators. `p95` is the 95th percentile of the absolute
    errors.
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
    """A prediction may be off by `share` of itself either way; None where nothing is recorded.

    `evidence` is a sentence on what the figure rests on.
    """

    share: float | None
    evidence: str
