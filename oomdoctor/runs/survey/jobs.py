"""The jobs of a survey: the inspection, the counting of rows, the tries."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace

from oomdoctor.records.config import TrainConfig, taken_bytes
from oomdoctor.records.report import SurveyRequest
from oomdoctor.records.result import (
    Attempt,
    FileKind,
    Inspection,
    ProbeJob,
    RecordingRequest,
    Reply,
)
from oomdoctor.runs.devices import device, startup_errors
from oomdoctor.runs.jobs.host import WorkerHost
from oomdoctor.runs.jobs.launch import launch, on_one_gpu
from oomdoctor.runs.survey.state import SurveySetup
from oomdoctor.system.store.run_folders import save_attempt


def is_alone(request: SurveyRequest) -> bool:
    """Whether one rank runs, and an emulated GPU stands in for the others."""
    return request.emulate is not None and request.most_gpus() > 1 and not request.all_ranks


class SurveyJobs:
    """Runs one job at a time in the host; `stop` ends the one that runs, which raises `Stopped`."""

    def __init__(self, setup: SurveySetup, host: WorkerHost, stop: Callable[[], bool]) -> None:
        self._setup, self._host, self._stop = setup, host, stop

    def inspect(self, config: TrainConfig) -> Inspection:
        """What the worker says about the model and the machine.

        Raises:
            OomDoctorError: the worker cannot say (exit 4 or 5).
        """
        job = ProbeJob(
            mode="inspect",
            label="inspect",
            model=self._setup.spec,
            config=on_one_gpu(config),
            device_type=self._setup.device.type,
        )
        attempt, reply = self._launched(job, "inspect", None)
        if reply is not None and reply.inspection is not None:
            return reply.inspection
        raise startup_errors.inspection_error(attempt, self._setup.spec, self._setup.request.python)

    def without_deadline(
        self, job: ProbeJob, on_phase: Callable[[str], None]
    ) -> tuple[Attempt, Reply | None]:
        """Run a job that may take long, such as counting a large data file."""
        return self._launched(job, job.label, None, on_phase, math.inf)

    def measure(
        self,
        label: str,
        config: TrainConfig,
        usable_bytes: int,
        *,
        on_phase: Callable[[str], None],
    ) -> Attempt:
        """Try one micro-batch size of one rung in its own process."""
        size = config.micro_batch_size
        assert isinstance(size, int)
        job = self._job(label, config, usable_bytes)
        return self._launched(job, label, usable_bytes, on_phase, size=size)[0]

    def record(
        self, label: str, config: TrainConfig, usable_bytes: int, kind: FileKind, file: str
    ) -> Attempt:
        """Run a few steps of a rung and write a snapshot or a trace."""
        job = replace(
            self._job(label, config, usable_bytes),
            mode="record",
            recording=RecordingRequest(kind, file),
        )
        return self._launched(job, f"{kind}-{label}", usable_bytes)[0]

    def _launched(
        self,
        job: ProbeJob,
        name: str,
        usable_bytes: int | None,
        on_phase: Callable[[str], None] = lambda phase: None,
        deadline_s: float | None = None,
        size: int | None = None,
    ) -> tuple[Attempt, Reply | None]:
        """Run a job in the folder of that name; a try of a micro-batch size is kept there."""
        folder = self._setup.folder.job_folder(name, size)
        attempt, reply = launch(
            self._host,
            job,
            folder,
            usable_bytes=usable_bytes,
            deadline_s=self._setup.request.rung_limit_s if deadline_s is None else deadline_s,
            on_phase=on_phase,
            stop=self._stop,
        )
        if size is not None:
            save_attempt(folder, attempt)
        return attempt, reply

    def _job(self, label: str, config: TrainConfig, usable_bytes: int) -> ProbeJob:
        request, gpu = self._setup.request, self._setup.device.gpu
        return ProbeJob(
            mode="measure",
            label=label,
            model=self._setup.spec,
            config=config,
            device_type=self._setup.device.type,
            budget_bytes=usable_bytes,
            device_id=self._setup.device_id,
            weights=request.weights,
            evaluate=request.evaluate,
            eval_batch_size=request.eval_batch_size,
            seed=request.seed,
            timed=gpu is None or not gpu.emulated,
            alone=config.world_size > 1 and is_alone(request),
            nodes=request.nodes if config.world_size > 1 else 1,
            vllm_bytes=taken_bytes(config, gpu.total_bytes) if gpu is not None else 0,
            timing_limit_s=min(device.timing_limit_s(self._setup.device), request.rung_limit_s / 4),
        )
