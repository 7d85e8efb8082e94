"""A whole survey: one model, one device, every rung of a ladder, and the report at the end.

It joins the rooms below (find the model, lock the device, decide the next try, launch it) and keeps
everything on disk as it happens. It renders nothing and prints nothing: events go to the caller.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import replace

from oomdoctor.analysis.search.ladder import Context, NextTry, SkipRung, attempts_of, next_step
from oomdoctor.analysis.verdict import conclude, fits
from oomdoctor.errors import ExitCode, OomDoctorError
from oomdoctor.records.config import Rung, config_faults
from oomdoctor.records.model import ModelSpec
from oomdoctor.records.report import Budget, Report, SurveyRequest, Warn
from oomdoctor.records.result import Attempt, Inspection, ProbeResult
from oomdoctor.records.rows import CountedRows
from oomdoctor.runs import assemble, device, faults
from oomdoctor.runs.events import EventKind, Listener, SurveyEvent
from oomdoctor.runs.jobs.host import WorkerHost
from oomdoctor.runs.jobs.launch import Stopped
from oomdoctor.runs.position_limit import within_limits
from oomdoctor.runs.rows import at_longest, count_rows, measured_answer
from oomdoctor.runs.survey.jobs import SurveyJobs
from oomdoctor.runs.survey.knowledge import Knowledge
from oomdoctor.runs.survey.predict import LadderPrediction, predict_ladder, with_prediction
from oomdoctor.system.environment import worker_environment
from oomdoctor.system.machine.devices import (
    Device,
    choose_device,
    describe,
    installed_versions,
    list_gpus,
)
from oomdoctor.system.machine.lock import device_lock
from oomdoctor.system.models import hub
from oomdoctor.system.store.run_folders import RunFolder

Stop = Callable[[], ExitCode | None]
_SAME_BUDGET = 0.97  # what is free differs a little from hour to hour


def run_survey(
    request: SurveyRequest,
    folder: RunFolder,
    *,
    wait: bool,
    on_event: Listener,
    stop: Stop,
) -> Report:
    """Measure the request's ladder and report; `report.json` is written in any case but an error.

    `stop()` returns an exit code once the survey is to end early: the worker is killed and what is
    known is reported. `wait` waits for another survey on the same device instead of refusing.

    Raises:
        OomDoctorError: the model or the machine cannot be had (exit 4, 5), or the folder written.
    """
    begin, started_at = time.monotonic(), assemble.timestamp()
    folder.write_request(request)
    spec, notes = hub.resolve_with_notes(request.model)
    warnings = [Warn("model_source", note) for note in notes]
    if request.weights == "pretrained":
        faults.check_weights(spec)
    chosen = choose_device(request.device, list_gpus())
    lock_id = chosen.gpu.uuid if chosen.gpu else "cpu"

    def on_wait(message: str) -> None:
        on_event(SurveyEvent("waiting", message=message))

    environment = worker_environment(chosen.gpu.uuid if chosen.gpu else None)
    host = WorkerHost(request.python, environment, folder.path)
    survey = _Survey(request, folder, spec, chosen, host, on_event, stop, begin, warnings)
    try:
        with (
            device_lock(
                lock_id, wait, on_wait, run=folder.name, keep_waiting=lambda: not survey.is_over()
            ),
            host,
        ):
            survey.chosen = device.as_it_is_now(chosen)  # another survey may have held it till now
            survey.run()
    except OomDoctorError:
        if stop() is None:  # else it is the wait for the device that was broken off
            raise
    report = survey.report(started_at)
    folder.write_report(report)
    on_event(SurveyEvent("done", total=len(survey.rungs)))
    return report


def resume_request(folder: RunFolder) -> SurveyRequest:
    """The request a stored run was started with.

    Raises:
        OomDoctorError: the run has no readable request (exit 2).
    """
    return folder.read_request()


class _Survey:
    """One survey in progress. Invariant: `attempts` holds every attempt that is on disk."""

    def __init__(
        self,
        request: SurveyRequest,
        folder: RunFolder,
        spec: ModelSpec,
        chosen: Device,
        host: WorkerHost,
        on_event: Listener,
        stop: Stop,
        begin: float,
        warnings: list[Warn],
    ) -> None:
        self.request, self.folder, self.spec = request, folder, spec
        self.chosen = chosen
        self.jobs = SurveyJobs(request, folder, spec, chosen, host, self.is_over)
        self.on_event, self.stop, self.begin = on_event, stop, begin
        self.attempts: dict[str, tuple[Attempt, ...]] = {}  # by config.rung_key()
        self.skipped: dict[str, SkipRung] = {}  # by config.key()
        self.warnings = warnings
        self.rungs: tuple[Rung, ...] = request.recipe.rungs
        self.inspection: Inspection | None = None
        self.counted: CountedRows | None = None
        self.budget: Budget | None = None
        self.context = Context(usable_bytes=0, device_type=chosen.type)
        self.predicted = LadderPrediction()
        self.knowledge: Knowledge | None = None

    def run(self) -> None:
        """Look at the model, then try what `next_step` says until it is content or told to stop."""
        self.on_event(SurveyEvent("inspecting", message=f"{self.spec.id} ({self.spec.source})"))
        inspection = self.inspection = self.jobs.inspect(self.rungs[0].config)
        if inspection is None:
            return
        if not self._count_rows():
            return
        self.request, self.rungs, lowered = within_limits(
            self.request, self.spec.id, inspection.max_sequence_length
        )
        self.warnings += lowered
        budget = self.budget = device.budget(
            self.chosen, inspection, self.request.vram_bytes, self.request.headroom
        )
        self.warnings += device.warnings(self.chosen, budget, inspection)
        self.context = Context(
            usable_bytes=budget.usable_bytes,
            device_type=self.chosen.type,
            counts=inspection.parameters,
            fixed_micro_batch=self.request.micro_batch_size,
            model_config=self.spec.config,
            task=self.spec.task,
            compute_capability=inspection.compute_capability,
            gpu=device.facts(self.chosen, inspection),
        )
        if self.request.device == "auto" and self.chosen.type == "cpu":
            device.refuse_what_takes_hours(self.spec, self.rungs, inspection.parameters)
        self._load_finished()
        if self.request.predict:
            self._predict(inspection, budget)
        self._walk(budget)

    def _predict(self, inspection: Inspection, budget: Budget) -> None:
        """Simulate the rungs for this device, to begin where they are predicted to end."""
        self.knowledge = Knowledge.of(self.chosen, inspection.versions)
        self.predicted = predict_ladder(
            self.request,
            self.folder,
            self.spec,
            inspection,
            budget,
            self.context,
            self.rungs,
            self.knowledge.learned,
            on_event=self.on_event,
            stop=self.is_over,
        )
        self.context = replace(self.context, predictions=self.predicted.predictions)

    def is_over(self) -> bool:
        """Whether to end now: a signal came, or the survey's time is over."""
        return self.stop() is not None or self._out_of_time()

    def _out_of_time(self) -> bool:
        limit = self.request.time_limit_s
        return limit is not None and time.monotonic() - self.begin >= limit

    def _count_rows(self) -> bool:
        """Count the data file, if there is one; False when told to stop."""
        try:
            self.counted = count_rows(
                self.request, self.spec, self.jobs.without_deadline, self.on_event
            )
        except Stopped:
            return False
        if self.counted is not None:
            self.request = at_longest(self.request, self.counted.distribution.longest.tokens)
        return True

    def _load_finished(self) -> None:
        """Take over what an earlier run of this folder has finished (`--resume`)."""

        def note(message: str) -> None:
            self.on_event(SurveyEvent("note", message=message))

        usable = self.context.usable_bytes
        for job, attempt in self.folder.attempts(note):
            if job.device_id != self.jobs.device_id:
                note(f"{attempt.folder} was measured on another device: tried again")
            elif attempt.outcome == "oom" and (job.budget_bytes or 0) < usable * _SAME_BUDGET:
                note(f"{attempt.folder} ran out of less memory than there is now: tried again")
            elif attempt.measurement is not None:
                outcome, reason = fits(attempt.measurement, usable)
                self._keep(replace(attempt, outcome=outcome, reason=reason))
            else:
                self._keep(attempt)
        taken = sum(len(found) for found in self.attempts.values())
        if taken:
            note(f"{taken} finished tries taken over")

    def _keep(self, attempt: Attempt) -> None:
        key = attempt.config.rung_key()
        self.attempts[key] = (*self.attempts.get(key, ()), attempt)

    def _walk(self, budget: Budget) -> None:
        while not self.is_over():
            step = next_step(self.rungs, self.attempts, self.skipped, self.context)
            if step is None:
                return
            key = step.rung.config.key()
            if isinstance(step, SkipRung):
                self.skipped[key] = step
                self._tell("skipped", step.rung, message=step.reason)
                continue
            attempt = self._try(step, budget)
            if attempt is None:
                return
            self._keep(attempt)
            if self.knowledge is not None:
                corrected = self.knowledge.learn(step.rung, attempt, self.context.predictions)
                self.context = replace(self.context, predictions=corrected)
            self._tell("tried", step.rung, step.micro_batch_size, attempt=attempt)
            if not any(warning.code == device.NOT_FREE for warning in self.warnings):
                self.warnings += device.not_given_back(self.chosen)

    def _tell(
        self,
        kind: EventKind,
        rung: Rung,
        size: int | None = None,
        *,
        phase: str | None = None,
        attempt: Attempt | None = None,
        message: str | None = None,
    ) -> None:
        index = 1 + self.rungs.index(rung)
        self.on_event(
            SurveyEvent(kind, rung, size, phase, attempt, index, len(self.rungs), message)
        )

    def _try(self, step: NextTry, budget: Budget) -> Attempt | None:
        """One micro-batch size of one rung in a process of its own; None when told to stop."""
        rung, size = step.rung, step.micro_batch_size
        config = rung.config.with_micro_batch(size)
        self._tell("trying", rung, size, message=step.why)
        wrong = config_faults(config)
        if wrong:
            reason = "; ".join(f"{key} {what}" for key, what in wrong)
            return Attempt(config, "unsupported", None, None, None, reason, 0.0)
        return self.jobs.measure(
            rung.label,
            config,
            budget.usable_bytes,
            on_phase=lambda phase: self._tell("phase", rung, size, phase=phase),
        )

    def report(self, started_at: str) -> Report:
        """The report of what is known now."""
        versions = self.inspection.versions if self.inspection else installed_versions()
        results = self._results()
        return assemble.report(
            request=self.request,
            run_dir=str(self.folder.path),
            run_name=self.folder.name,
            started_at=started_at,
            elapsed_s=time.monotonic() - self.begin,
            machine=describe(self.chosen, versions),
            spec=self.spec,
            inspection=self.inspection,
            budget=self.budget,
            results=results,
            warnings=self._all_warnings(),
            interrupted=self.stop(),
            lengths=measured_answer(self.counted, results, self.request),
        )

    def _all_warnings(self) -> tuple[Warn, ...]:
        if self._out_of_time() and self.stop() is None:
            late = Warn("time_limit", "the time limit ended the survey; --resume goes on with it")
            return (*self.warnings, late)
        return tuple(self.warnings)

    def _results(self) -> tuple[ProbeResult, ...]:
        return tuple(
            with_prediction(
                conclude(
                    rung,
                    attempts_of(rung, self.attempts),
                    self.skipped.get(rung.config.key()),
                    self.context,
                    self.request,
                ),
                rung,
                self.predicted,
            )
            for rung in self.rungs
        )
