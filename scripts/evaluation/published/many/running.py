"""Run a row of several GPUs: one rank runs the engine of the rung on the row's emulated card."""

from __future__ import annotations

import os
import re
import subprocess
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from emulated.environment import OLDER, ROOT, STAND_INS

from oomdoctor.commands.devices import emulated
from oomdoctor.records.codec import dumps, loads
from oomdoctor.records.job.measurement import Measurement
from oomdoctor.records.job.result import ProbeJob, Reply
from oomdoctor.system.environment import worker_environment
from published.code import Row
from published.many.code import engine_adaptations, is_fused, runs_as_it_was
from published.many.config import many_config
from published.rows import find_card, model_of

HERE = Path(__file__).parent
_POLL_S = 0.5
_SEEN_GPUS = 8  # of one machine; a rank is told of more by its environment
# A card that the catalogue lacks has the memory of another, which no row comes near.
_ALIKE = {"H100 96GB HBM2e": "H100 80GB HBM3"}


@dataclass(frozen=True, slots=True)
class Interpreters:
    """The interpreters of rows: with today's libraries, and with those of the rows of fms."""

    present: Path
    older: Path | None


@dataclass(frozen=True, slots=True)
class Prediction:
    """What a row needs on a card: bytes by its metric, and how that was found out."""

    predicted_bytes: int
    torch: str
    transformers: str
    adaptations: tuple[str, ...]


def predict(row: Row, interpreters: Interpreters, host_bytes: int) -> Prediction | str:
    """The prediction of a row, or why its training did not end in `host_bytes` of memory."""
    own = runs_as_it_was(row) and interpreters.older is not None
    if is_fused(row) and not own:
        return "its fused kernels need the packages of the row: give --venv"
    python = interpreters.older if own else interpreters.present
    assert python is not None
    names = tuple(engine_adaptations(row, own=own))
    libraries = _libraries(row, python) if own else ()
    with tempfile.TemporaryDirectory() as folder:
        reply = _run(row, python, libraries, names, Path(folder), host_bytes)
    if isinstance(reply, str):
        return reply
    if reply.measurement is None:
        return reply.reason or (reply.failure and reply.failure.message) or reply.status
    versions = _versions(python, libraries)
    return Prediction(_reading(row, reply.measurement), *versions, names)


def _reading(row: Row, found: Measurement) -> int:
    if row["metric"] == "allocated":
        return found.peak_allocated_bytes
    return found.peak_reserved_bytes or 0


def _run(
    row: Row,
    python: Path,
    libraries: tuple[Path, ...],
    names: tuple[str, ...],
    folder: Path,
    host_bytes: int,
) -> Reply | str:
    files = folder / "job.json", folder / "reply.json"
    files[0].write_text(dumps(_job(row)))
    log = folder / "log.txt"
    with _emulated(row, python, folder) as variables, log.open("w") as output:
        path = map(str, (ROOT, ROOT / "scripts" / "evaluation", STAND_INS, *libraries))
        process = subprocess.Popen(
            [python, HERE / "training.py", *files, *names],
            env=variables | {"PYTHONPATH": os.pathsep.join(path)},
            stdout=output,
            stderr=output,
        )
        while process.poll() is None:
            time.sleep(_POLL_S)
            if _resident_bytes(process.pid) > host_bytes:
                process.kill()
                process.wait()
                return f"one rank needs more than {host_bytes / 1e9:.0f} GB of host memory to run"
    if not files[1].exists():
        return f"it did not end: {log.read_text()[-500:]}"
    return loads(Reply, files[1].read_text())


def _resident_bytes(pid: int) -> int:
    status = Path(f"/proc/{pid}/statm")
    try:
        return int(status.read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")
    except (OSError, IndexError):
        return 0  # it has just ended


def _job(row: Row) -> ProbeJob:
    return ProbeJob(
        "measure", row["id"], model_of(row), many_config(row), "cuda", timed=False, alone=True
    )


@contextmanager
def _emulated(row: Row, python: Path, folder: Path) -> Iterator[dict[str, str]]:
    name = re.sub(r"^\d+x | \(.*", "", str(row["gpu"]))
    for lacking, alike in _ALIKE.items():
        name = name.replace(lacking, alike)
    card = find_card(name)
    assert card is not None, f"no card {row['gpu']}"
    count = min(int(row["world_size"]), _SEEN_GPUS)
    gpus = emulated.emulated_gpus(f"{count}x{card.name}", alone=True)
    with emulated.emulating(gpus, str(python), folder) as variables:
        yield worker_environment(emulated.uuid_of(0)) | variables


def _libraries(row: Row, python: Path) -> tuple[Path, ...]:
    """The folder of transformers 4.45, for the rows that ran with it."""
    older = str(row["versions"]["transformers"]).startswith("4.45")
    return (python.absolute().parents[1] / OLDER,) if older else ()


def _versions(python: Path, libraries: tuple[Path, ...]) -> list[str]:
    code = "from importlib.metadata import version as v; print(v('torch'), v('transformers'))"
    environment: dict[str, Any] = os.environ | {"PYTHONPATH": os.pathsep.join(map(str, libraries))}
    told = subprocess.run(
        [python, "-c", code], env=environment, capture_output=True, text=True, check=True
    )
    return [version.partition("+")[0] for version in told.stdout.split()]
