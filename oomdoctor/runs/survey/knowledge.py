"""What a survey learns about its GPU from the first rung it measures.

The size of the CUDA context and the speed of kernels are the same for all rungs. So one measurement
corrects the predictions of the others, in this survey and in later ones on this machine.
"""

from __future__ import annotations

import contextlib
from collections.abc import Mapping
from dataclasses import dataclass, replace

from oomdoctor.analysis.memory.overhead import context_bytes
from oomdoctor.analysis.search.from_prediction import RungPrediction
from oomdoctor.analysis.speed.throughput import tokens_per_s
from oomdoctor.errors import OomDoctorError
from oomdoctor.records.config import Rung
from oomdoctor.records.costs import Calibration
from oomdoctor.records.result import Attempt
from oomdoctor.system.catalogue import find_gpu
from oomdoctor.system.machine.devices import Device, driver_version
from oomdoctor.system.store.calibration import Learned, recall, remember

_FACTORS = (0.2, 5.0)  # beyond these the prediction is wrong, not the machine slow or fast


@dataclass(slots=True)
class Knowledge:
    """Measured constants of one machine. `learned` is None until measured, and on the CPU."""

    device: Device
    versions: Mapping[str, str | None]
    learned: Learned | None = None
    settled: bool = False

    @classmethod
    def of(cls, device: Device, versions: Mapping[str, str | None]) -> Knowledge:
        """What earlier surveys on this machine measured."""
        if device.gpu is None:
            return cls(device, versions, settled=True)
        return cls(device, versions, recall(device.gpu.name, driver_version(), versions))

    def learn(
        self, rung: Rung, attempt: Attempt, predictions: Mapping[str, RungPrediction]
    ) -> Mapping[str, RungPrediction]:
        """Take the constants from the first measured rung, and return the corrected predictions."""
        measured, size = attempt.measurement, attempt.config.micro_batch_size
        if self.settled or measured is None or self.device.gpu is None:
            return predictions
        assert isinstance(size, int)
        self.settled = True
        before = self.learned
        gpu = self.device.gpu
        assumed = before.overhead_bytes if before is not None else None
        if assumed is None:
            assumed = context_bytes(find_gpu(gpu.name, gpu.total_bytes)).likely
        overhead = measured.overhead_bytes
        prediction = predictions.get(rung.config.key())
        rate = prediction.rates.get(size) if prediction is not None else None
        factor = 1.0
        if rate is not None and measured.timing is not None:
            factor = rate / tokens_per_s(measured.timing, attempt.config)
        self.learned = Learned(
            gpu_name=gpu.name,
            driver_version=driver_version(),
            overhead_bytes=overhead if overhead is not None else assumed,
            speed=_scaled(before.speed if before is not None else Calibration(), factor),
            rungs=1 + (before.rungs if before is not None else 0),
        )
        # If it cannot be stored, it still serves this survey.
        with contextlib.suppress(OomDoctorError, OSError):
            remember(self.learned, self.versions)
        shift = self.learned.overhead_bytes - assumed if self.learned.overhead_bytes else 0
        return {key: _corrected(known, shift, factor) for key, known in predictions.items()}


def _corrected(prediction: RungPrediction, shift: int, factor: float) -> RungPrediction:
    return replace(
        prediction,
        peaks={size: peak + shift for size, peak in prediction.peaks.items()},
        rates={size: rate / factor for size, rate in prediction.rates.items()},
    )


def _scaled(speed: Calibration, factor: float) -> Calibration:
    def moved(known: float) -> float:
        return min(max(known * factor, _FACTORS[0]), _FACTORS[1])

    return Calibration(moved(speed.compute), moved(speed.bandwidth), moved(speed.launch))
