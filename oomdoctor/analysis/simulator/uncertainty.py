"""How far a predicted time may be off, from the recorded errors of its kind.

The figure is the 95th percentile of the recorded errors. Our own runs take precedence over
published ones. Errors are recorded by architecture. On another one, or if the host is the
bottleneck, the known spread between kernels or hosts is added.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING

from oomdoctor.analysis.speed.efficiency import efficiency_of
from oomdoctor.records.costs import Bound, EstimatedTime
from oomdoctor.records.evidence import Slower, SpeedErrorRecord, Uncertainty

if TYPE_CHECKING:
    from oomdoctor.records.machine import GpuFacts

_ENOUGH = 5  # with fewer runs, a 95th percentile is just the largest of a few
_WHOSE = {"measured": "of our own", "published": "published by others"}
# Relative, by bottleneck: how far the sources of the roofline's constants differ for a card, and
# for the host, whose processor is unknown.
_SPREAD: dict[Bound, float] = {"compute": 0.25, "bandwidth": 0.3, "launch": 0.5}
_UNMEASURED = 1.5  # factor if a card's efficiencies were taken from a related card


def time_uncertainty(
    estimated: EstimatedTime, gpu: GpuFacts, records: Sequence[SpeedErrorRecord]
) -> Uncertainty:
    """The share by which an estimated time may be off, and the reason.

    `gpu` must have a row in the table of efficiencies.
    """
    slower: Slower = "host" if estimated.host_s >= estimated.device_s else "device"
    alike = [r for r in records if r.slower == slower]
    own = [r for r in alike if r.compute_capability == gpu.compute_capability]
    record = next(
        (r for origin in _WHOSE for r in own if r.origin == origin and r.count >= _ENOUGH), None
    )
    if record is not None and slower == "device":
        return Uncertainty(record.p95, _speed_sentence(record))
    spread = _constants_spread(estimated, gpu)
    little = _few_speed_runs(gpu, slower, spread, known=record is not None)
    basis = record or max(alike or records, key=lambda r: r.p95, default=None)
    if basis is None:
        return Uncertainty(spread, little)
    return Uncertainty(math.hypot(spread, basis.p95), f"{little}; {_speed_sentence(basis)}")


def _constants_spread(estimated: EstimatedTime, gpu: GpuFacts) -> float:
    """How far the sources of the roofline's constants differ, for the bottlenecks here."""
    share = sum(_SPREAD[bound] * part for bound, part in estimated.bound_by.items())
    efficiency = efficiency_of(gpu)
    measured = efficiency is not None and efficiency.measured
    return share if measured or estimated.bound_by["launch"] == 1.0 else share * _UNMEASURED


def _few_speed_runs(gpu: GpuFacts, slower: Slower, spread: float, *, known: bool) -> str:
    of_what = "hosts" if slower == "host" else "sources of kernel speeds"
    differ = f"{of_what} differ by {spread:.0%}"
    if known:
        return differ
    return (
        f"little evidence: too few runs were compared on compute capability "
        f"{gpu.compute_capability} with the {slower} as the bottleneck; {differ}"
    )


def _speed_sentence(record: SpeedErrorRecord) -> str:
    runs = "1 run" if record.count == 1 else f"{record.count} runs"
    return (
        f"{runs} {_WHOSE[record.origin]} (compute capability {record.compute_capability}, "
        f"{record.slower} as the bottleneck): 95% within {record.p95:.1%}, "
        f"half within {record.absolute_median:.1%}"
    )
