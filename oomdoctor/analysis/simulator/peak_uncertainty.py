"""How far a predicted peak may be off, from the recorded errors of its kind.

Two comparisons are added: predictions beside the same rungs on the emulated GPU, and the emulated
GPU beside published runs of real ones. Each is the 95th percentile of its absolute errors. The
first is taken from rungs of the same method, compute capability and torch; if they are few, from
more and more kinds of rungs, of the same torch before others, and the sentence says which.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from oomdoctor.records.config import Method
from oomdoctor.records.evidence import PeakErrorRecord, PeakMetric, Uncertainty

_ENOUGH = 5  # with fewer, a 95th percentile is just the largest of a few


@dataclass(frozen=True, slots=True)
class PeakErrors:
    """What is recorded, and where a prediction is for.

    `compute_capability` is the card's, `torch` the version of the training environment ("2.12.1");
    None if unknown.
    """

    records: Sequence[PeakErrorRecord]
    compute_capability: str | None
    torch: str | None

    def of(self, method: Method, metric: PeakMetric) -> Uncertainty:
        """The share by which a peak may be off either way, and the reason."""
        prediction = self._prediction(method, metric)
        if prediction is None:
            return Uncertainty(None, "no prediction has been compared yet")
        # What torch reserves follows from what it allocates, by torch's own code.
        real = next((r for r in self.records if r.reference == "published"), None)
        if real is None:
            return Uncertainty(prediction.p95, _predicted(prediction))
        evidence = f"{_predicted(prediction)}; {_emulated(real)}"
        return Uncertainty(prediction.p95 + real.p95, evidence)

    def _prediction(self, method: Method, metric: PeakMetric) -> PeakErrorRecord | None:
        release = None if self.torch is None else ".".join(self.torch.split(".")[:2])
        known = [r for r in self.records if (r.reference, r.metric) == ("emulated", metric)]
        kinds = (
            (method, self.compute_capability, release),
            (method, None, release),
            (None, None, release),
            (method, None, None),
        )
        for kind in kinds:
            for r in known:
                if (r.method, r.compute_capability, r.torch) == kind and r.count >= _ENOUGH:
                    return r
        return max(known, key=lambda r: r.p95, default=None)


def _predicted(record: PeakErrorRecord) -> str:
    kind = (
        record.method,
        record.compute_capability and f"compute capability {record.compute_capability}",
        record.torch and f"torch {record.torch}",
    )
    named = ", ".join(word for word in kind if word) or "every kind"
    return (
        f"95% of {record.count} rungs ({named}) were within {record.p95:.2%} "
        f"of the {record.metric} peak on the emulated GPU"
    )


def _emulated(record: PeakErrorRecord) -> str:
    return f"the emulated GPU was within {record.p95:.2%} of {record.count} published runs"
