"""What a survey predicts before it measures, and what it learns from the rungs it measures first.

Every rung is simulated for the device of the survey. The size of the CUDA context and the speed of
kernels are the same for all rungs. So one measurement corrects the predictions of the others, in
this survey and in later ones on this machine.

A time teaches only if it can be trusted: it settled, nobody else used the device, and the card can
be that fast. It teaches only about what limits it: a small model that waits for the host says
nothing about the card's arithmetic. An emulated GPU teaches nothing that is kept.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Self

from oomdoctor.analysis.memory.overhead import context_bytes, nccl_bytes
from oomdoctor.analysis.search.from_prediction import RungPrediction
from oomdoctor.analysis.search.ladder import Context, fixed_size, too_big
from oomdoctor.analysis.simulator.predicted_attempts import (
    attempts_of_prediction,
    prediction_for,
    sizes_to_predict,
)
from oomdoctor.analysis.speed.limits import bounded, can_be_true
from oomdoctor.analysis.speed.throughput import tokens_per_s
from oomdoctor.commands.devices.calibrations import speed_here
from oomdoctor.commands.devices.device import known_card
from oomdoctor.commands.events import Listener, SurveyEvent, starting
from oomdoctor.commands.jobs.launch import Stopped
from oomdoctor.commands.jobs.simulators import Simulators
from oomdoctor.commands.probe.state import LadderPrediction, SurveyState
from oomdoctor.errors import OomDoctorError
from oomdoctor.records.configuration.config import Rung, taken_bytes
from oomdoctor.records.job.costs import Calibration
from oomdoctor.records.job.machine import GpuFacts
from oomdoctor.records.job.result import Attempt, ProbeJob
from oomdoctor.records.job.simulation import SimulationRequest, Target
from oomdoctor.records.report.report import Warn
from oomdoctor.records.report.warnings import calibration_ignored, warning
from oomdoctor.system.machine.devices import Device
from oomdoctor.system.machine.nvml import driver_version
from oomdoctor.system.store.calibration import Learned, device_name, name_of, recall, remember

_FACTORS = (0.2, 5.0)  # beyond these the prediction is wrong, not the machine slow or fast
_HERE = "this device"


@dataclass(slots=True)
class Knowledge:
    """Measured constants of one machine. `learned` is None until measured.

    A CPU has none but those of `probe --calibrate`.

    `run` is the run that learns, `date` its start in UTC, `cap_bytes` its --vram if that limits the
    memory. `warnings` are about stored constants that were not used.
    """

    device: Device
    versions: Mapping[str, str | None]
    run: str
    date: str
    cap_bytes: int | None = None
    learned: Learned | None = None
    knows_context: bool = False
    knows_speed: bool = False
    warnings: tuple[Warn, ...] = ()

    def recalled(self) -> Self:
        """With what earlier surveys on this machine measured."""
        gpu = self.device.gpu
        self.knows_context, self.knows_speed = gpu is None, gpu is None or gpu.emulated
        if gpu is not None and gpu.emulated:
            return self
        driver = driver_version() if gpu is not None else None
        learned = recall(name_of(self.device), driver, self.versions, self.cap_bytes)
        if gpu is None:
            self.learned = learned if learned is not None and learned.times is not None else None
            return self
        facts = self.facts()
        if learned is not None and facts is not None and not can_be_true(learned.speed, facts):
            self.warnings = (calibration_ignored(gpu.name, learned.run),)
        else:
            self.learned = learned
        return self

    def facts(self) -> GpuFacts | None:
        """The published facts of the card; None if it is unknown, and on the CPU."""
        gpu = self.device.gpu
        return known_card(gpu.name, gpu.total_bytes) if gpu is not None else None

    def learn(
        self,
        rung: Rung,
        attempt: Attempt,
        predictions: Mapping[str, RungPrediction],
        *,
        trusted: bool,
    ) -> Mapping[str, RungPrediction]:
        """Take the constants from the first rungs that have them; the corrected predictions.

        `trusted` says whether the times of the attempt may be believed and compared.
        """
        measured, gpu = attempt.measurement, self.device.gpu
        if measured is None or gpu is None or (self.knows_context and self.knows_speed):
            return predictions
        driver = None if gpu.emulated else driver_version()
        before = self.learned or Learned(device_name(gpu), driver, None, Calibration(), 0)
        shift, overhead = 0, before.overhead_bytes
        if not self.knows_context:
            assumed = overhead if overhead is not None else context_bytes(self.facts()).likely
            overhead = assumed
            if measured.overhead_bytes is not None:  # vLLM is not the machine's
                overhead = measured.overhead_bytes - taken_bytes(attempt.config, gpu.total_bytes)
            shift = overhead - assumed
        speed = None
        if trusted and not self.knows_speed:
            speed = self._speed(attempt, predictions.get(rung.config.key()), before.speed)
        if self.knows_context and speed is None:
            return predictions
        self.knows_context, self.knows_speed = True, self.knows_speed or speed is not None
        self.learned = replace(
            before, overhead_bytes=overhead, rungs=before.rungs + 1, cap_bytes=self.cap_bytes
        )
        if speed is not None:
            self.learned = replace(self.learned, speed=speed, run=self.run, date=self.date)
        if not gpu.emulated:  # what is emulated says nothing about a machine
            # If it cannot be stored, it still serves this survey.
            with suppress(OomDoctorError, OSError):
                remember(self.learned, self.versions)
        old, new = before.speed, speed or before.speed
        # How much longer the estimates are now, by what limits the speed.
        change = {"host": new.launch / old.launch, "device": new.compute / old.compute}
        return {key: _corrected(predicted, shift, change) for key, predicted in predictions.items()}

    def _speed(
        self, attempt: Attempt, prediction: RungPrediction | None, before: Calibration
    ) -> Calibration | None:
        """The factors after a measured time; None if it was not estimated, or is too far off."""
        size = attempt.config.micro_batch_size
        timing = attempt.measurement.timing if attempt.measurement is not None else None
        facts = self.facts()
        if prediction is None or timing is None or facts is None or not isinstance(size, int):
            return None
        rate, limit = prediction.rates.get(size), prediction.limited_by.get(size)
        if rate is None or limit is None:
            return None
        factor = rate / tokens_per_s(timing, attempt.config)
        if limit == "host":
            after = replace(before, launch=before.launch * factor)
        else:
            after = replace(
                before, compute=before.compute * factor, bandwidth=before.bandwidth * factor
            )
        factors = (after.compute, after.bandwidth, after.launch)
        if not all(_FACTORS[0] <= value <= _FACTORS[1] for value in factors):
            return None
        return bounded(after, facts)


def _corrected(
    prediction: RungPrediction, shift: int, change: Mapping[str, float]
) -> RungPrediction:
    return replace(
        prediction,
        peaks={size: peak + shift for size, peak in prediction.peaks.items()},
        rates={
            size: rate / change.get(prediction.limited_by.get(size) or "", 1.0)
            for size, rate in prediction.rates.items()
        },
    )


def predict_rungs(
    state: SurveyState,
    rungs: Sequence[Rung],
    learned: Learned | None,
    sizes: Mapping[str, tuple[int, ...]] | None = None,
    *,
    on_event: Listener,
    stop: Callable[[], bool],
) -> LadderPrediction:
    """Simulate the rungs for the survey's device, as far as possible; the rest is left out.

    `learned` are constants of the machine that an earlier survey measured. `sizes` are micro-batch
    sizes by key of a rung, where they are not those that a search may reach. The survey
    warns if what was simulated could not be kept.
    """
    setup, context = state.setup, state.context
    target = _target(state, learned)
    jobs = [
        (rung, _job(rung, state, target, (sizes or {}).get(rung.config.key())))
        for rung in rungs
        if _is_open(rung, context)
    ]
    ladder = LadderPrediction()
    request = state.request
    simulators = Simulators(
        request.python,
        setup.folder,
        request.rung_limit_s,
        stop,
        fresh=request.fresh,
        variables=setup.variables,
    )
    with suppress(Stopped), simulators:
        told = starting(on_event, [rung for rung, _ in jobs])
        for done, ended in enumerate(simulators.run([job for _, job in jobs], told), 1):
            rung = jobs[ended.number][0]
            on_event(SurveyEvent("simulated", rung, index=done, total=len(jobs)))
            prediction = prediction_for(ended.reply, target.name)
            if prediction is not None:
                config = rung.config
                device = target.beside_vllm(config)
                attempts = attempts_of_prediction(
                    config, prediction, device, ended.attempt, context
                )
                ladder.keep(config.key(), attempts, context.device_type, target.usable_bytes)
    if simulators.memory.failure is not None:
        lost = warning("not_kept", reason=simulators.memory.failure)
        state.warn([lost] if lost not in state.warnings else [])
    return ladder


def _is_open(rung: Rung, context: Context) -> bool:
    """Whether the rung is valid and its lower bound leaves room."""
    size = fixed_size(rung.config, context) or 1
    refused = context.refuses(rung.config.with_micro_batch(size))
    return refused is None and too_big(rung, context) is None


def _target(state: SurveyState, learned: Learned | None) -> Target:
    budget, context = state.budget, state.context
    assert budget is not None
    overhead = 0
    if context.device_type == "cuda":
        measured = learned.overhead_bytes if learned is not None else None
        overhead = measured if measured is not None else context_bytes(context.gpu).likely
        overhead += nccl_bytes(state.request.most_gpus())
    facts, speed = speed_here(learned, context.gpu)
    return Target(
        name=_HERE,
        total_bytes=budget.total_bytes,
        usable_bytes=budget.usable_bytes,
        overhead_bytes=overhead,
        gpu=facts,
        calibration=speed,
    )


def _job(rung: Rung, state: SurveyState, target: Target, asked: tuple[int, ...] | None) -> ProbeJob:
    inspection, context = state.inspection, state.context
    assert inspection is not None
    sizes = asked or sizes_to_predict(rung.config, fixed_size(rung.config, context))
    return ProbeJob(
        mode="simulate",
        label=f"predict-{rung.label}",
        model=state.spec,
        config=rung.config.with_micro_batch(sizes[0]),
        device_type=context.device_type,
        seed=state.request.seed,
        simulation=SimulationRequest(
            micro_batch_sizes=sizes,
            targets=(target.beside_vllm(rung.config),),
            stacks=inspection.stacks,
            as_cuda=context.device_type == "cuda",
        ),
    )
