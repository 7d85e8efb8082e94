"""Measure the rungs of a survey in turn, until all are settled or an end is requested.

A survey has other jobs too: the inspection, the counting of rows, and the files in which rungs are
recorded once they are measured, for `probe --snapshot` and `probe --trace`.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable
from dataclasses import dataclass, replace

from oomdoctor.analysis.search.ladder import NextTry, SkipRung
from oomdoctor.analysis.speed_verdict import may_teach
from oomdoctor.commands.devices import device, startup_errors
from oomdoctor.commands.events import Listener, SurveyEvent
from oomdoctor.commands.jobs.host import WorkerHost
from oomdoctor.commands.jobs.launch import Launched, launch, on_one_gpu
from oomdoctor.commands.probe.knowledge import Knowledge
from oomdoctor.commands.probe.state import Ending, SurveySetup, SurveyState
from oomdoctor.records.configuration.config import Rung, TrainConfig, taken_bytes
from oomdoctor.records.job.result import (
    FILE_ENDINGS,
    Attempt,
    FileKind,
    Inspection,
    ProbeJob,
    ProbeResult,
    RecordingRequest,
    refused,
)
from oomdoctor.records.report.report import RungFile, SurveyRequest
from oomdoctor.records.report.warnings import MEMORY_NOT_FREE, warning
from oomdoctor.system.store.run_folders import save_attempt


def walk(state: SurveyState, jobs: SurveyJobs, knowledge: Knowledge | None) -> None:
    """Take one step after the other. `knowledge` corrects the predictions, where there are any.

    Raises:
        Stopped: told to stop.
    """
    while not jobs.ending.is_over():
        step = state.standing().next_step()
        if step is None:
            return
        if isinstance(step, SkipRung):
            state.skip(step)
            _tell(state, jobs, step.rung, SurveyEvent("skipped", message=step.reason))
            continue
        attempt = _try(state, jobs, step)
        kept = state.keep(attempt)
        if knowledge is not None:
            predicted = state.context.predictions
            trusted = may_teach(attempt, state.context)
            state.correct_predictions(
                knowledge.learn(step.rung, attempt, predicted, trusted=trusted)
            )
        tried = SurveyEvent("tried", micro_batch_size=step.micro_batch_size, attempt=kept)
        _tell(state, jobs, step.rung, tried)
        told = any(warn.code == MEMORY_NOT_FREE for warn in state.warnings)
        if not told and state.request.emulate is None:
            state.warn(device.not_given_back(state.setup.device))


def _try(state: SurveyState, jobs: SurveyJobs, step: NextTry) -> Attempt:
    """Try one micro-batch size of one rung in its own process."""
    rung, size = step.rung, step.micro_batch_size
    config = rung.config.with_micro_batch(size)
    trying = SurveyEvent("trying", micro_batch_size=size, message=step.why)
    _tell(state, jobs, rung, trying)
    reason = state.context.refuses(config)
    if reason is not None:
        return refused(config, reason)

    def on_phase(phase: str) -> None:
        _tell(state, jobs, rung, SurveyEvent("phase", micro_batch_size=size, phase=phase))

    return jobs.measure(rung.label, config, state.context.usable_bytes, on_phase=on_phase)


def _tell(state: SurveyState, jobs: SurveyJobs, rung: Rung, event: SurveyEvent) -> None:
    """Tell an event of a rung, with its place among the others."""
    rungs = state.all_rungs()
    index, total = 1 + rungs.index(rung), len(rungs)
    left = sum(other is not rung for other in state.standing().still_to_try())
    jobs.on_event(replace(event, rung=rung, index=index, total=total, left=left))


def record_rungs(state: SurveyState, jobs: SurveyJobs) -> None:
    """Record the rungs that the request names, each in a separate process."""
    asked = state.setup.request
    kinds: tuple[tuple[FileKind, str | None], ...] = (
        ("snapshot", asked.snapshot),
        ("trace", asked.trace),
    )
    for kind, label in kinds:
        if label is None or jobs.ending.is_over():
            continue
        # The label may have changed with the 16-bit type of the device.
        place = [rung.label for rung in asked.recipe.rungs].index(label)
        rung, row = state.rungs[place], state.results()[place]
        size, reason = _size_to_record(row), row.reason or "it did not run"
        if size is not None:
            message = f"recording the {kind} of {rung.label} at micro-batch {size}"
            jobs.on_event(SurveyEvent("waiting", message=message))
            name = re.sub(r"[^\w.+-]+", "-", rung.label)
            file = state.setup.folder.path / f"{kind}-{name}.{FILE_ENDINGS[kind]}"
            config = rung.config.with_micro_batch(size)
            attempt = jobs.record(rung.label, config, state.context.usable_bytes, kind, str(file))
            if attempt.outcome in ("fits", "oom") and file.is_file():
                state.files += (RungFile(kind, rung.label, size, str(file)),)
                continue
            file.unlink(missing_ok=True)  # what a step that failed has left says nothing
            reason = attempt.reason or attempt.outcome
        state.warn([warning("not_recorded", kind=kind, label=rung.label, reason=reason)])


def _size_to_record(row: ProbeResult) -> int | None:
    """The micro-batch size of the row; if none fits, the smallest that ran out of memory."""
    if row.outcome == "fits":
        return row.micro_batch_size
    failed = [tried.micro_batch_size for tried in row.tries if tried.outcome == "oom"]
    return min(failed, default=None)


def is_alone(request: SurveyRequest) -> bool:
    """Whether one rank runs, and an emulated GPU stands in for the others."""
    return request.emulate is not None and request.most_gpus() > 1 and not request.all_ranks


@dataclass(frozen=True, slots=True)
class SurveyJobs:
    """Runs one job at a time in the host; `ending` ends the one that runs, which raises `Stopped`.

    `on_event` is the listener of the survey.
    """

    setup: SurveySetup
    host: WorkerHost
    ending: Ending
    on_event: Listener

    def inspect(self, config: TrainConfig) -> Inspection:
        """What the worker says about the model and the machine.

        Raises:
            OomDoctorError: the worker cannot say (exit 4 or 5).
        """
        job = ProbeJob(
            mode="inspect",
            label="inspect",
            model=self.setup.spec,
            config=on_one_gpu(config),
            device_type=self.setup.device.type,
        )
        attempt, reply = self._launched(job)
        if reply is not None and reply.inspection is not None:
            return reply.inspection
        raise startup_errors.inspection_error(attempt, self.setup.spec, self.setup.request.python)

    def without_deadline(self, job: ProbeJob, on_phase: Callable[[str], None]) -> Launched:
        """Run a job that may take long, such as counting a large data file."""
        return self._launched(job, on_phase, deadline_s=math.inf)

    def measure(
        self, label: str, config: TrainConfig, usable_bytes: int, *, on_phase: Callable[[str], None]
    ) -> Attempt:
        """Try one micro-batch size of one rung in its own process."""
        size = config.micro_batch_size
        assert isinstance(size, int)
        return self._launched(self._job(label, config, usable_bytes), on_phase, size=size)[0]

    def record(
        self, label: str, config: TrainConfig, usable_bytes: int, kind: FileKind, file: str
    ) -> Attempt:
        """Run a few steps of a rung and write a snapshot or a trace."""
        job = replace(
            self._job(label, config, usable_bytes),
            mode="record",
            recording=RecordingRequest(kind, file),
        )
        return self._launched(job, name=f"{kind}-{label}")[0]

    def _launched(
        self,
        job: ProbeJob,
        on_phase: Callable[[str], None] = lambda phase: None,
        *,
        name: str | None = None,
        deadline_s: float | None = None,
        size: int | None = None,
    ) -> Launched:
        """Run a job in the folder of its label, or of `name`; a try of a size is kept there."""
        folder = self.setup.folder.job_folder(name or job.label, size)
        attempt, reply = launch(
            self.host,
            job,
            folder,
            usable_bytes=job.budget_bytes,
            deadline_s=self.setup.request.rung_limit_s if deadline_s is None else deadline_s,
            on_phase=on_phase,
            stop=self.ending.is_over,
        )
        if size is not None:
            save_attempt(folder, attempt)
        return attempt, reply

    def _job(self, label: str, config: TrainConfig, usable_bytes: int) -> ProbeJob:
        request, gpu = self.setup.request, self.setup.device.gpu
        return ProbeJob(
            mode="measure",
            label=label,
            model=self.setup.spec,
            config=config,
            device_type=self.setup.device.type,
            budget_bytes=usable_bytes,
            device_id=self.setup.device_id,
            weights=request.weights,
            evaluate=request.evaluate,
            eval_batch_size=request.eval_batch_size,
            seed=request.seed,
            timed=gpu is None or not gpu.emulated,
            alone=config.world_size > 1 and is_alone(request),
            nodes=request.nodes if config.world_size > 1 else 1,
            vllm_bytes=taken_bytes(config, gpu.total_bytes) if gpu is not None else 0,
            timing_limit_s=min(device.timing_limit_s(self.setup.device), request.rung_limit_s / 4),
        )
