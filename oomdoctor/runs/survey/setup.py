"""What a survey is given before anything runs, and when it ends early."""

from __future__ import annotations

import platform
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from oomdoctor.errors import ExitCode
from oomdoctor.records.model import ModelSpec
from oomdoctor.records.report import SurveyRequest, Warn
from oomdoctor.system.machine.devices import Device
from oomdoctor.system.store.run_folders import RunFolder

Stop = Callable[[], ExitCode | None]


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
