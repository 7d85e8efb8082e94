"""What measured rungs taught about this machine, stored for later predictions.

One small file per GPU, --vram, driver and set of libraries, because each of them changes the size
of the CUDA context and the speed of the kernels. MIG slices have separate files, because they say
nothing about the card. Nothing is kept of an emulated GPU. A file that cannot be read is ignored
and written again.
"""

from __future__ import annotations

import hashlib
import os
import re
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

from oomdoctor.errors import OomDoctorError
from oomdoctor.records.job.costs import CalibratedBy, Calibration, LearnedFactors
from oomdoctor.records.job.device_times import DeviceTimes
from oomdoctor.records.job.machine import Gpu
from oomdoctor.system.environment import state_dir, variable
from oomdoctor.system.machine.devices import Device, cpu_name
from oomdoctor.system.regular_files import latest_first
from oomdoctor.system.store.record_files import read_record, write_record
from oomdoctor.units import format_bytes

_DECIDING = ("torch", "cuda", "transformers", "bitsandbytes", "peft")


@dataclass(frozen=True, slots=True)
class Learned:
    """Constants measured on a machine.

    `gpu_name` is the name by `device_name`. `overhead_bytes` is what a process uses outside the
    caching allocator. `speed` holds the factors of the roofline, learned by `run` on `date`.
    `rungs` counts the measured rungs behind them. `cap_bytes` is the --vram of the run. `times` are
    those of `probe --calibrate`, measured at `timed_at` (UTC, ISO 8601) with this version of torch;
    the factors correct estimates that use them.
    """

    gpu_name: str
    driver_version: str | None
    overhead_bytes: int | None
    speed: Calibration
    rungs: int
    run: str | None = None
    date: str | None = None
    cap_bytes: int | None = None
    times: DeviceTimes | None = None
    timed_at: str | None = None
    torch: str | None = None

    def calibrated_by(self) -> CalibratedBy | None:
        """The run behind the factors, and when `times` were measured; None if there are neither."""
        if self.speed == Calibration() and self.times is None:
            return None
        speed = self.speed
        factors = LearnedFactors(speed.compute, speed.bandwidth, speed.launch)
        return CalibratedBy(
            self.run, self.date, self.gpu_name, self.cap_bytes, factors, self.timed_at
        )


def device_name(gpu: Gpu) -> str:
    """The name that a GPU's facts are stored under: MIG slices stand apart."""
    name = gpu.name
    if gpu.uuid.startswith("MIG-") and "MIG" not in name:
        name += f" MIG {format_bytes(gpu.total_bytes)}"
    return name


def name_of(device: Device) -> str:
    """The name that a device's facts are stored under; a CPU's has what decides its threads."""
    if device.gpu is not None:
        return device_name(device.gpu)
    cores = len(os.sched_getaffinity(0))
    threads = variable("OMP_NUM_THREADS")
    limit = f", OMP_NUM_THREADS={threads}" if threads is not None else ""
    return f"{cpu_name() or 'CPU'}, {cores} cores{limit}"


def recall(
    gpu_name: str,
    driver_version: str | None,
    versions: Mapping[str, str | None],
    cap_bytes: int | None = None,
) -> Learned | None:
    """What is known about a GPU with this driver and these libraries; None if nothing is.

    What was learned under the same --vram goes before what was learned without one.
    """
    for cap in dict.fromkeys((cap_bytes, None)):
        path = _path(gpu_name, driver_version, versions, cap)
        if path.is_file():
            with suppress(OomDoctorError):
                return read_record(Learned, path)
    return None


def newest(is_meant: Callable[[Learned], bool]) -> Learned | None:
    """The latest facts about a GPU, with any driver and libraries; None if there are none.

    For plans on a machine without the GPU: a home folder shared with the compute nodes holds what
    `probe` learned there. What was learned under a cap counts only if there is nothing else.
    """
    meant = [learned for learned in everything() if is_meant(learned)]
    return next(
        (learned for learned in meant if learned.cap_bytes is None), next(iter(meant), None)
    )


def everything() -> Iterator[Learned]:
    """All facts that can be read, the latest first."""
    for path in latest_first(_folder().glob("*.json")):
        with suppress(OomDoctorError, OSError):
            yield _read(path, path.stat().st_mtime_ns)


@lru_cache(maxsize=64)
def _read(path: Path, _changed_ns: int) -> Learned:
    """A plan for every card asks for them once for each."""
    return read_record(Learned, path)


def remember(learned: Learned, versions: Mapping[str, str | None]) -> None:
    """Store what was learned for later runs.

    Raises:
        OomDoctorError: the folder cannot be written (exit 5).
    """
    path = _path(learned.gpu_name, learned.driver_version, versions, learned.cap_bytes)
    path.parent.mkdir(parents=True, exist_ok=True)
    write_record(path, learned)


def _path(
    gpu_name: str, driver: str | None, versions: Mapping[str, str | None], cap: int | None
) -> Path:
    deciding = [str(driver), *(str(versions.get(name)) for name in _DECIDING)]
    deciding += [] if cap is None else [f"capped to {cap}"]
    digest = hashlib.sha256("\n".join(deciding).encode()).hexdigest()[:12]
    name = re.sub(r"[^A-Za-z0-9]+", "-", gpu_name).strip("-").lower()
    return _folder() / f"{name}-{digest}.json"


def _folder() -> Path:
    return state_dir() / "calibration"
