"""The predictions for every rung of a ladder on one device."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field, replace

from oomdoctor.analysis.search.from_prediction import RungPrediction
from oomdoctor.analysis.speed.throughput import tokens_per_s
from oomdoctor.records.config import Rung
from oomdoctor.records.machine import DeviceType
from oomdoctor.records.measurement import Measurement
from oomdoctor.records.result import Attempt, Outcome, PredictedPeak, ProbeResult


@dataclass(slots=True)
class LadderPrediction:
    """Predictions by `config.key()` of a rung; empty if nothing could be predicted."""

    rungs: dict[str, RungPrediction] = field(default_factory=dict)
    peaks: dict[tuple[str, int], PredictedPeak] = field(default_factory=dict)  # by key and size
    attempts: dict[str, tuple[Attempt, ...]] = field(default_factory=dict)  # as if each was tried

    def keep(
        self, key: str, attempts: Iterable[Attempt], device_type: DeviceType, usable_bytes: int
    ) -> None:
        """Keep what the simulation of a rung says, one attempt for each micro-batch size.

        A size counts with the tensors alone if these exceed the usable memory: on a full device the
        allocator gives back what it holds beyond them, so a real step may come that close.
        """
        peaks: dict[int, int] = {}
        rates: dict[int, float] = {}
        limited_by: dict[int, str | None] = {}
        tried: list[Attempt] = []
        for attempt in attempts:
            size, simulated = attempt.config.micro_batch_size, attempt.measurement
            if not isinstance(size, int) or simulated is None:
                continue
            expected = _as_measured(simulated, device_type)
            peaks[size] = expected.deciding_peak_bytes()
            tensors = expected.peak_allocated_bytes + (expected.overhead_bytes or 0)
            if attempt.outcome != "fits" and usable_bytes < tensors < peaks[size]:
                peaks[size] = tensors
            outcome: Outcome = "fits" if peaks[size] <= usable_bytes else "oom"
            tried.append(replace(attempt, measurement=expected, outcome=outcome))
            self.peaks[key, size] = PredictedPeak(
                expected.peak_allocated_bytes,
                expected.peak_reserved_bytes,
                expected.peak_device_bytes,
            )
            if simulated.timing is not None:
                rates[size] = tokens_per_s(simulated.timing, attempt.config)
                limited_by[size] = simulated.timing.limited_by
        self.rungs[key] = RungPrediction(peaks, rates, limited_by)
        self.attempts[key] = tuple(tried)

    def beside(self, result: ProbeResult, rung: Rung) -> ProbeResult:
        """The row with its prediction: at its micro-batch size, or at the smallest predicted."""
        key = rung.config.key()
        size = result.micro_batch_size
        if size is None:
            size = min((known for other, known in self.peaks if other == key), default=1)
        return replace(result, predicted=self.peaks.get((key, size)))


def _as_measured(simulated: Measurement, device_type: DeviceType) -> Measurement:
    """The CPU has no caching allocator: tensor bytes decide."""
    if device_type == "cuda":
        return simulated
    return replace(simulated, peak_reserved_bytes=None, peak_device_bytes=None)
