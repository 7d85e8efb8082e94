"""What a survey is given, what it has found out so far, and the rows that follow from it."""

from __future__ import annotations

import platform
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace

from oomdoctor.analysis.search.from_prediction import RungPrediction
from oomdoctor.analysis.search.ladder import Context, SkipRung, Standing, attempts_of
from oomdoctor.analysis.search.moments import Room, with_moments
from oomdoctor.analysis.speed.throughput import tokens_per_s
from oomdoctor.analysis.speed.training_time import training_data
from oomdoctor.analysis.verdict import conclude
from oomdoctor.commands.devices import device
from oomdoctor.commands.ladder.ledger import Ledger, counts_from_config, with_bound, within_limits
from oomdoctor.errors import ExitCode
from oomdoctor.records.configuration.config import Rung
from oomdoctor.records.facts.checkpoints import checkpoint_of
from oomdoctor.records.job.machine import DeviceType
from oomdoctor.records.job.measurement import Measurement
from oomdoctor.records.job.model import ModelSpec
from oomdoctor.records.job.result import (
    Attempt,
    Evidence,
    Inspection,
    Outcome,
    PredictedPeak,
    ProbeResult,
)
from oomdoctor.records.report.report import Budget, SurveyRequest, Warn
from oomdoctor.system.machine.devices import Device
from oomdoctor.system.store.run_folders import RunFolder

Stop = Callable[[], ExitCode | None]


class SurveyState(Ledger):
    """One survey in progress.

    Invariants: `attempts` holds every attempt, in order. `changed` are the rung of --from with
    changes, which come after the ladder.
    """

    def __init__(self, setup: SurveySetup) -> None:
        super().__init__(setup.request, setup.spec, setup.warnings)
        self.setup = setup
        # Until the worker has looked at the model: enough for lower bounds.
        self.budget: Budget | None = device.budget(
            setup.device, None, self.request.vram_bytes, self.request.headroom
        )
        self.context = Context(
            usable_bytes=self.budget.usable_bytes,
            device_type=setup.device.type,
            counts=counts_from_config(self.spec),
            model_config=self.spec.config,
            checkpoint=checkpoint_of(self.spec.quantized),
            task=self.spec.task,
        )
        self.predicted = LadderPrediction()
        self.attempts: dict[str, tuple[Attempt, ...]] = {}  # by config.rung_key()
        self.skipped: dict[str, SkipRung] = {}  # by config.key()
        self.changed: tuple[Rung, ...] = ()

    def set_limits(self, inspection: Inspection) -> None:
        """Lower rows that are too long for the model, and find what a rung may use."""
        setup = self.setup
        self.request, self.rungs, lowered = within_limits(self.request, self.spec.id, inspection)
        name = setup.device.gpu.name if setup.device.gpu is not None else "this device"
        self.ladders_for({name: inspection.compute_capability})
        self.budget = device.budget(
            setup.device, inspection, self.request.vram_bytes, self.request.headroom
        )
        self.warn(lowered)
        self.warn(device.warnings(setup.device, self.budget, inspection, self.request))
        self.warn(
            device.short_of_host(setup.device, self.request, self.rungs, inspection.parameters)
        )
        self.context = replace(
            self.context,
            usable_bytes=self.budget.usable_bytes,
            total_bytes=self.budget.total_bytes,
            counts=inspection.parameters,
            fixed_micro_batch=self.request.micro_batch_size,
            compute_capability=inspection.compute_capability,
            gpu=device.facts(setup.device, inspection),
            data=training_data(self.request.training, self.request.lengths, self.counted),
            emulated=setup.device.gpu is not None and setup.device.gpu.emulated,
        )

    def take_prediction(self, predicted: LadderPrediction) -> None:
        """Take the predictions of all rungs; the search then starts from them."""
        self.predicted = predicted
        self.correct_predictions(predicted.rungs)

    def correct_predictions(self, predictions: Mapping[str, RungPrediction]) -> None:
        """Use corrected predictions for the search; the report keeps the first ones."""
        self.context = replace(self.context, predictions=predictions)

    def keep(self, step: Attempt) -> Attempt:
        """Add an attempt at a step, judged by all moments of its job; returns it."""
        context = self.context
        room = Room(context.usable_bytes, context.total_bytes or context.usable_bytes)
        attempt = with_moments(step, context, room)
        key = attempt.config.rung_key()
        self.attempts[key] = (*self.attempts.get(key, ()), attempt)
        return attempt

    def skip(self, step: SkipRung) -> None:
        """Leave a rung out."""
        self.skipped[step.rung.config.key()] = step

    def add_change(self, rung: Rung, predictions: Mapping[str, RungPrediction]) -> None:
        """Add a change of the rung of --from, to be tried next."""
        self.changed += (rung,)
        self.correct_predictions({**self.context.predictions, **predictions})

    def standing(self) -> Standing:
        """What is settled, from which follows what to do next."""
        return Standing(self.all_rungs(), self.attempts, self.skipped, self.context)

    def all_rungs(self) -> tuple[Rung, ...]:
        """The ladder, and the changes of the rung of --from."""
        return (*self.rungs, *self.changed)

    def results(self) -> tuple[ProbeResult, ...]:
        """A row for each rung."""
        return tuple(self.predicted.beside(self.row(rung), rung) for rung in self.rungs)

    def row(self, rung: Rung) -> ProbeResult:
        """The row of one rung, without its prediction."""
        attempts = attempts_of(rung, self.attempts)
        skip = self.skipped.get(rung.config.key())
        evidence: Evidence = "emulated" if self.context.emulated else "measured"
        row = conclude(rung, attempts, skip, self.context, self.request, evidence)
        return with_bound(row, rung, self.context)


@dataclass(frozen=True, slots=True)
class SurveySetup:
    """What is decided before anything runs. Jobs and state both read it, so they cannot disagree.

    `device` is the device as it was when the survey got hold of it. `warnings` are those that are
    known from the start. Worker processes get `variables` added to their environment.
    """

    request: SurveyRequest
    spec: ModelSpec
    device: Device
    folder: RunFolder
    warnings: tuple[Warn, ...] = ()
    variables: Mapping[str, str] = field(default_factory=dict)

    @property
    def device_id(self) -> str:
        """The UUIDs of the GPUs; for a CPU the name of the machine, which stands for its speed."""
        uuids = "+".join(gpu.uuid for gpu in self.device.gpus)
        return uuids or f"cpu of {platform.node()}"


@dataclass(frozen=True, slots=True)
class Ending:
    """When a survey ends early: on a signal, or at its time limit.

    `stop()` returns an exit code once a signal came. `begin` is in `time.monotonic()` seconds.
    """

    stop: Stop
    time_limit_s: float | None
    begin: float

    def is_over(self) -> bool:
        """Whether to end now."""
        return self.stop() is not None or self._out_of_time()

    def by_time_limit(self) -> bool:
        """Whether the time limit ended the survey, and no signal."""
        return self._out_of_time() and self.stop() is None

    def _out_of_time(self) -> bool:
        return self.time_limit_s is not None and self.elapsed_s() >= self.time_limit_s

    def elapsed_s(self) -> float:
        """Seconds since the survey began."""
        return time.monotonic() - self.begin


@dataclass(slots=True)
class LadderPrediction:
    """Predictions by `config.key()` of a rung; empty if nothing could be predicted."""

    rungs: dict[str, RungPrediction] = field(default_factory=dict)
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
            tensors = expected.least_bytes()
            if attempt.outcome != "fits" and usable_bytes < tensors < peaks[size]:
                peaks[size] = tensors
            outcome: Outcome = "fits" if peaks[size] <= usable_bytes else "oom"
            tried.append(replace(attempt, measurement=expected, outcome=outcome))
            if simulated.timing is not None:
                rates[size] = tokens_per_s(simulated.timing, attempt.config)
                limited_by[size] = simulated.timing.limited_by
        self.rungs[key] = RungPrediction(peaks, rates, limited_by)
        self.attempts[key] = tuple(tried)

    def beside(self, result: ProbeResult, rung: Rung) -> ProbeResult:
        """The row with its prediction: at its micro-batch size, or at the smallest predicted."""
        attempts = self.attempts.get(rung.config.key(), ())
        simulated = {attempt.config.micro_batch_size: attempt.measurement for attempt in attempts}
        smallest = next(iter(simulated.values()), None)
        size = result.micro_batch_size
        predicted = smallest if size is None else simulated.get(size)
        return replace(result, predicted=PredictedPeak.of(predicted))


def _as_measured(simulated: Measurement, device_type: DeviceType) -> Measurement:
    """The CPU has no caching allocator: tensor bytes decide."""
    if device_type == "cuda":
        return simulated
    return replace(simulated, peak_reserved_bytes=None, peak_device_bytes=None)
