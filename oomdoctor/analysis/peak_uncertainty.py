"""How far a predicted peak may be off, from the recorded errors of its kind.

Two comparisons are added: predictions beside the same rungs on the emulated GPU, and the emulated
GPU beside published runs of real ones. Each is the 95th percentile of its absolute errors. The
first is taken from rungs of the same method, compute capability and torch; if they are few, from
more and more kinds of rungs, of the same torch before others.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from oomdoctor.records.facts.choices import Method
from oomdoctor.records.simulation import PeakErrorRecord, PeakMetric

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

    def share(self, method: Method, metric: PeakMetric) -> float | None:
        """The share by which a peak may be off either way; None if nothing was compared."""
        prediction = self.of_simulation(method, metric)
        return None if prediction is None else prediction + (self.of_emulation() or 0.0)

    def of_simulation(self, method: Method, metric: PeakMetric) -> float | None:
        """The share by which a predicted peak differs from that on the emulated GPU."""
        prediction = self._prediction(method, metric)
        return None if prediction is None else prediction.p95

    def of_emulation(self) -> float | None:
        """The share by which a peak on the emulated GPU differs from that on a real one."""
        # What torch reserves follows from what it allocates, by torch's own code.
        real = next((r for r in self.records if r.reference == "published"), None)
        return None if real is None else real.p95

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
