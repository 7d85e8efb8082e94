"""The jobs of a survey, each handed to its worker host: the inspection, the rows, the tries."""

from __future__ import annotations

import math
import platform
from collections.abc import Callable

from oomdoctor.records.config import TrainConfig
from oomdoctor.records.model import ModelSpec
from oomdoctor.records.report import SurveyRequest
from oomdoctor.records.result import Attempt, Inspection, ProbeJob, Reply
from oomdoctor.runs import device, faults
from oomdoctor.runs.jobs.host import WorkerHost
from oomdoctor.runs.jobs.launch import Stopped, launch
from oomdoctor.system.machine.devices import Device
from oomdoctor.system.store.run_folders import RunFolder, save_attempt


class SurveyJobs:
    """Runs one job after the other in the host; `stop` ends the one that runs."""

    def __init__(
        self,
        request: SurveyRequest,
        folder: RunFolder,
        spec: ModelSpec,
        chosen: Device,
        host: WorkerHost,
        stop: Callable[[], bool],
    ) -> None:
        self._request, self._folder, self._spec = request, folder, spec
        self._chosen, self._host, self._stop = chosen, host, stop

    @property
    def device_id(self) -> str:
        """The GPU by UUID; the CPU by the machine's name, because it stands for its speed."""
        return self._chosen.gpu.uuid if self._chosen.gpu else f"cpu of {platform.node()}"

    def inspect(self, config: TrainConfig) -> Inspection | None:
        """What the model and the machine are, from inside the worker; None when told to stop.

        Raises:
            OomDoctorError: the worker cannot say (exit 4 or 5).
        """
        job = ProbeJob(
            mode="inspect",
            label="inspect",
            model=self._spec,
            config=config,
            device_type=self._chosen.type,
        )
        try:
            attempt, reply = launch(
                self._host,
                job,
                self._folder.job_folder("inspect", None),
                usable_bytes=None,
                deadline_s=self._request.rung_limit_s,
                on_phase=lambda phase: None,
                stop=self._stop,
            )
        except Stopped:
            return None
        if reply is not None and reply.inspection is not None:
            return reply.inspection
        raise faults.inspection_error(attempt, self._spec, self._request.python)

    def without_deadline(
        self, job: ProbeJob, on_phase: Callable[[str], None]
    ) -> tuple[Attempt, Reply | None]:
        """A job that takes its time and shows its progress, as a large data file does.

        Raises:
            Stopped: told to stop.
        """
        return launch(
            self._host,
            job,
            self._folder.job_folder(job.label, None),
            usable_bytes=None,
            deadline_s=math.inf,
            on_phase=on_phase,
            stop=self._stop,
        )

    def measure(
        self,
        label: str,
        config: TrainConfig,
        usable_bytes: int,
        *,
        on_phase: Callable[[str], None],
    ) -> Attempt | None:
        """One micro-batch size of one rung in a process of its own; None when told to stop."""
        size = config.micro_batch_size
        assert isinstance(size, int)
        job_folder = self._folder.job_folder(label, size)
        try:
            attempt, _ = launch(
                self._host,
                self._job(label, config, usable_bytes),
                job_folder,
                usable_bytes=usable_bytes,
                deadline_s=self._request.rung_limit_s,
                on_phase=on_phase,
                stop=self._stop,
            )
        except Stopped:
            return None
        save_attempt(job_folder, attempt)
        return attempt

    def _job(self, label: str, config: TrainConfig, usable_bytes: int) -> ProbeJob:
        request = self._request
        return ProbeJob(
            mode="measure",
            label=label,
            model=self._spec,
            config=config,
            device_type=self._chosen.type,
            budget_bytes=usable_bytes,
            device_id=self.device_id,
            weights=request.weights,
            evaluate=request.evaluate,
            eval_batch_size=request.eval_batch_size,
            seed=request.seed,
            timing_limit_s=min(device.timing_limit_s(self._chosen), request.rung_limit_s / 4),
        )
