"""How far a predicted peak may be off, from the recorded errors of its kind.

The figure is the 95th percentile of errors that were seen, never an estimate of its own. Runs of
our own come before those that others published; where a kind has few runs, the widest kind of the
same peak stands in, and the sentence says so.
"""

from __future__ import annotations

from collections.abc import Sequence

from oomdoctor.records.config import Method
from oomdoctor.records.evidence import ErrorRecord, PeakMetric, Uncertainty

_ENOUGH = 5  # runs below which a 95th percentile is no more than the largest of a few
_WHOSE = {"measured": "of our own", "published": "that others published"}


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
