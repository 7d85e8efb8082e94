"""What measured rungs taught about this machine, stored for later predictions.

One small file per GPU, --vram, driver and set of libraries, because each of them changes the size
of the CUDA context and the speed of the kernels. MIG slices have separate files, because they say
nothing about the card. Nothing is kept of an emulated GPU. A file that cannot be read is ignored
and written again.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from oomdoctor.errors import OomDoctorError
from oomdoctor.records.job.costs import CalibratedBy, Calibration
from oomdoctor.records.job.machine import Gpu
from oomdoctor.system.environment import state_dir
from oomdoctor.system.regular_files import latest_first
from oomdoctor.system.store.record_files import read_record, write_record
from oomdoctor.units import format_bytes

_DECIDING = ("torch", "cuda", "transformers", "bitsandbytes", "peft")


@dataclass(frozen=True, slots=True)
class Learned:
    """Constants measured on a machine.

    `gpu_name` is the name by `device_name`. `overhead_bytes` is what a process uses outside the
    caching allocator. `speed` holds the factors of the roofline, learned by `run` on `date`.
    `rungs` counts the measured rungs behind them. `cap_bytes` is the --vram of the run.
    """

    gpu_name: str
    driver_version: str | None
    overhead_bytes: int | None
    speed: Calibration
    rungs: int
    run: str | None = None
    date: str | None = None
    cap_bytes: int | None = None

    def calibrated_by(self) -> CalibratedBy | None:
        """The run behind the factors; None if there are no factors."""
        if self.speed == Calibration():
            return None
        return CalibratedBy(self.run, self.date, self.gpu_name, self.cap_bytes, self.speed)


def device_name(gpu: Gpu) -> str:
    """The name that a GPU's facts are stored under: MIG slices stand apart."""
    name = gpu.name
    if gpu.uuid.startswith("MIG-") and "MIG" not in name:
        name += f" MIG {format_bytes(gpu.total_bytes)}"
    return name


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


def newest(is_meant: Callable[[str], bool]) -> Learned | None:
    """The latest facts about a GPU, with any driver and libraries; None if there are none.

    `is_meant` decides by the name of the device. For plans on a machine without the GPU: a home
    folder shared with the compute nodes holds what `probe` learned there. What was learned under a
    cap counts only if there is nothing else.
    """
    capped = None
    for path in latest_first(_folder().glob("*.json")):
        with suppress(OomDoctorError):
            learned = read_record(Learned, path)
            if not is_meant(learned.gpu_name):
                continue
            if learned.cap_bytes is None:
                return learned
            capped = capped or learned
    return capped


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
