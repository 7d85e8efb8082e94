"""What measured rungs taught about this machine, stored for later predictions.

One small file per GPU, driver and set of libraries, because each of them changes the size of the
CUDA context and the speed of the kernels. A file that cannot be read is ignored and written again.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from oomdoctor.errors import OomDoctorError
from oomdoctor.records.costs import Calibration
from oomdoctor.system.environment import state_dir
from oomdoctor.system.store.record_files import read_record, write_record

_DECIDING = ("torch", "cuda", "transformers", "bitsandbytes", "peft")


@dataclass(frozen=True, slots=True)
class Learned:
    """Constants measured on a machine.

    `overhead_bytes` is what a process uses outside the caching allocator. `speed` holds the factors
    of the roofline. `rungs` counts the measured rungs behind them.
    """

    gpu_name: str
    driver_version: str | None
    overhead_bytes: int | None
    speed: Calibration
    rungs: int


def recall(
    gpu_name: str, driver_version: str | None, versions: Mapping[str, str | None]
) -> Learned | None:
    """What is known about a GPU with this driver and these libraries; None if nothing is."""
    path = _path(gpu_name, driver_version, versions)
    if not path.is_file():
        return None
    try:
        return read_record(Learned, path)
    except OomDoctorError:
        return None


def newest(is_meant: Callable[[str], bool]) -> Learned | None:
    """The latest facts about a GPU, with any driver and libraries; None if there are none.

    `is_meant` decides by the name that the driver gave. For plans on a machine without the GPU: a
    home folder shared with the compute nodes holds what `probe` learned there.
    """
    paths = sorted(_folder().glob("*.json"), key=lambda path: path.stat().st_mtime, reverse=True)
    for path in paths:
        with suppress(OomDoctorError):
            learned = read_record(Learned, path)
            if is_meant(learned.gpu_name):
                return learned
    return None


def remember(learned: Learned, versions: Mapping[str, str | None]) -> None:
    """Store what was learned for later runs.

    Raises:
        OomDoctorError: the folder cannot be written (exit 5).
    """
    path = _path(learned.gpu_name, learned.driver_version, versions)
    path.parent.mkdir(parents=True, exist_ok=True)
    write_record(path, learned)


def _path(gpu_name: str, driver: str | None, versions: Mapping[str, str | None]) -> Path:
    deciding = [str(driver), *(str(versions.get(name)) for name in _DECIDING)]
    digest = hashlib.sha256("\n".join(deciding).encode()).hexdigest()[:12]
    name = re.sub(r"[^A-Za-z0-9]+", "-", gpu_name).strip("-").lower()
    return _folder() / f"{name}-{digest}.json"


def _folder() -> Path:
    return state_dir() / "calibration"
