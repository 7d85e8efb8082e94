"""How far a predicted peak or time may be off, from the recorded errors of its kind.

The figure is the 95th percentile of errors that were seen. Runs of our own come before those that
others published; where a kind of peak has few runs, the widest kind of the same peak stands in, and
the sentence says so. Errors of times are recorded by architecture: on another one, and where the
host is what the rest waits for, it comes on top how far kernels or hosts are known to differ.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING

from oomdoctor.analysis.speed.efficiency import efficiency_of
from oomdoctor.records.config import Method
from oomdoctor.records.costs import Bound, EstimatedTime
from oomdoctor.records.evidence import (
    ErrorRecord,
    PeakMetric,
    Slower,
    SpeedErrorRecord,
    Uncertainty,
)

if TYPE_CHECKING:
    from oomdoctor.records.machine import GpuFacts

_ENOUGH = 5  # runs below which a 95th percentile is no more than the largest of a few
_WHOSE = {"measured": "of our own", "published": "that others published"}
# Relative, by what binds: how far the sources of the roofline's constants lie apart for a card, and
# for the host, whose processor no card tells.
_APART: dict[Bound, float] = {"compute": 0.25, "bandwidth": 0.3, "launch": 0.5}
_UNMEASURED = 1.5  # times as far where a card's efficiencies were taken over from a related one


def uncertainty_of(
    method: Method, metric: PeakMetric, records: Sequence[ErrorRecord]
) -> Uncertainty:
    """The share by which a peak of this method and metric may be off, and on what grounds."""
    own_kind = [r for r in records if (r.method, r.metric) == (method, metric)]
    for origin in _WHOSE:
        record = next((r for r in own_kind if r.origin == origin and r.count >= _ENOUGH), None)
        if record is not None:
            return Uncertainty(record.p95, _sentence(record))
    same_metric = [r for r in records if r.metric == metric]
    widest = max(same_metric or records, key=lambda r: r.p95, default=None)
    if widest is None:
        return Uncertainty(None, "no prediction was ever compared with a measurement")
    return Uncertainty(widest.p95, f"{_lack(method, metric, own_kind)}; {_sentence(widest)}")


def _lack(method: Method, metric: PeakMetric, found: Sequence[ErrorRecord]) -> str:
    count = sum(record.count for record in found)
    runs = "no run was" if not count else "1 run was" if count == 1 else f"{count} runs were"
    few = "" if not count else "only "
    return f"thin evidence: {few}{runs} compared for {method}, {metric}"


def _sentence(record: ErrorRecord) -> str:
    runs = "1 run" if record.count == 1 else f"{record.count} runs"
    return (
        f"{runs} {_WHOSE[record.origin]} ({record.method}, {record.metric}): "
        f"95 % within {record.p95:.1%}, half within {record.absolute_median:.1%}"
    )


def time_uncertainty(
    estimated: EstimatedTime, gpu: GpuFacts, records: Sequence[SpeedErrorRecord]
) -> Uncertainty:
    """The share by which an estimated time may be off, and on what grounds.

    `gpu` is a card that has an estimate: one with a row in the table of efficiencies.
    """
    slower: Slower = "host" if estimated.host_s >= estimated.device_s else "device"
    alike = [r for r in records if r.slower == slower]
    own = [r for r in alike if r.compute_capability == gpu.compute_capability]
    record = next(
        (r for origin in _WHOSE for r in own if r.origin == origin and r.count >= _ENOUGH), None
    )
    if record is not None and slower == "device":
        return Uncertainty(record.p95, _speed_sentence(record))
    apart = _constants_apart(estimated, gpu)
    lack = _speed_lack(gpu, slower, apart, known=record is not None)
    basis = record or max(alike or records, key=lambda r: r.p95, default=None)
    if basis is None:
        return Uncertainty(apart, lack)
    return Uncertainty(math.hypot(apart, basis.p95), f"{lack}; {_speed_sentence(basis)}")


def _constants_apart(estimated: EstimatedTime, gpu: GpuFacts) -> float:
    """How far the roofline's constants are off by their sources, for what binds here."""
    share = sum(_APART[bound] * part for bound, part in estimated.bound_by.items())
    efficiency = efficiency_of(gpu)
    measured = efficiency is not None and efficiency.measured
    return share if measured or estimated.bound_by["launch"] == 1.0 else share * _UNMEASURED


def _speed_lack(gpu: GpuFacts, slower: Slower, apart: float, *, known: bool) -> str:
    of_what = "hosts" if slower == "host" else "sources of kernel speeds"
    differ = f"{of_what} differ by {apart:.0%}"
    if known:
        return differ
    return (
        f"thin evidence: too few runs were compared on compute capability "
        f"{gpu.compute_capability} where the {slower} is slower; {differ}"
    )


def _speed_sentence(record: SpeedErrorRecord) -> str:
    runs = "1 run" if record.count == 1 else f"{record.count} runs"
    return (
        f"{runs} {_WHOSE[record.origin]} (compute capability {record.compute_capability}, "
        f"slower {record.slower}): 95 % within {record.p95:.1%}, "
        f"half within {record.absolute_median:.1%}"
    )
