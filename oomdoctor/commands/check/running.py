"""Runs the commands of a check file on their emulated cards, several at a time.

Each check is a process, `oomdoctor run --emulate`, which writes its report to a file.
"""

from __future__ import annotations

import linecache
import os
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path, PurePath

from oomdoctor.commands.run.process.streams import last_line
from oomdoctor.errors import ExitCode, OomDoctorError
from oomdoctor.records.report.check import CheckPeak, HeldLine
from oomdoctor.records.report.report import Report
from oomdoctor.records.report.run import Place, fullest
from oomdoctor.records.report.snapshot import HeldBlocks
from oomdoctor.system.check_file import Check
from oomdoctor.system.environment import all_variables
from oomdoctor.system.machine.limits import available_memory
from oomdoctor.system.store.record_files import read_record
from oomdoctor.units import GIB

_GRACE_S = 10.0
_HOST_BYTES = 3 * GIB  # of host memory for each process, so that they do not run out of it
_MOST_LINES = 30
_TAIL = 4096  # characters of the output that may say why a command failed


@dataclass(frozen=True, slots=True)
class Ran:
    """How a check ended: the report of its run, or why there is none (`reason`).

    `exit_code` is that of `oomdoctor run`; None if it took too long. `output` is the end of what
    the command printed.
    """

    report: Report | None
    exit_code: int | None
    reason: str | None
    elapsed_s: float
    output: str = ""


def how_many() -> int:
    """How many checks this machine has the cores and the memory for at the same time."""
    cores = len(os.sched_getaffinity(0))
    return max(1, min(cores, available_memory() // _HOST_BYTES))


def run_all(
    checks: Sequence[Check], folder: Path, jobs: int, on_end: Callable[[Check, Ran], None]
) -> list[Ran]:
    """Run the checks in a folder, `jobs` at a time; `on_end` is called as each ends.

    Raises:
        KeyboardInterrupt: all of them have been ended.
    """
    running = _Running()

    def run(check: Check) -> Ran:
        ran = running.run(check, folder)
        if not running.stopped:
            on_end(check, ran)
        return ran

    with ThreadPoolExecutor(max(1, min(jobs, len(checks)))) as threads:
        try:
            return list(threads.map(run, checks))
        except BaseException:
            running.stop()
            threads.shutdown(cancel_futures=True)
            raise


def run_one(check: Check, folder: Path) -> Ran:
    """Run a check in a folder."""
    return _Running().run(check, folder)


class _Running:
    """The processes that run now."""

    def __init__(self) -> None:
        self._processes: set[subprocess.Popen[bytes]] = set()
        self._stopped = threading.Event()

    def run(self, check: Check, folder: Path) -> Ran:
        """Run a check to its end, or for its `limit_s`."""
        began = time.monotonic()
        with tempfile.TemporaryDirectory(prefix="oomdoctor-check-") as made:
            answer, log = Path(made, "report.json"), Path(made, "output")
            words = [*_words(check, answer, Path(made, "case")), "--", *check.command]
            with log.open("wb") as output:
                code = self._ended(words, folder, check, output.fileno())
            took_s = round(time.monotonic() - began, 3)
            said = log.read_text(encoding="utf-8", errors="replace")[-_TAIL:]
            if code is None:
                return Ran(None, None, f"it took more than {check.limit_s:g} s", took_s, said)
            report: Report | None = None
            with suppress(OomDoctorError):
                report = read_record(Report, answer)
            return Ran(report, code, last_line(said), took_s, said)

    def _ended(self, words: list[str], folder: Path, check: Check, output: int) -> int | None:
        if self._stopped.is_set():
            return ExitCode.INTERRUPTED
        process = subprocess.Popen(
            words,
            cwd=folder,
            env=all_variables() | dict(check.environment),
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=output,
            start_new_session=True,
        )
        self._processes.add(process)
        try:
            return process.wait(check.limit_s)
        except subprocess.TimeoutExpired:
            return None
        finally:
            _end(process)
            self._processes.discard(process)

    def stop(self) -> None:
        """End all of them, and start no more."""
        self._stopped.set()
        processes = tuple(self._processes)
        for process in processes:
            _send(process, signal.SIGTERM)  # to all, so that none runs on while another one ends
        for process in processes:
            _end(process)

    @property
    def stopped(self) -> bool:
        """Whether all were ended, so that what one says of its end means nothing."""
        return self._stopped.is_set()


def _end(process: subprocess.Popen[bytes]) -> None:
    """Ask a process to end, as Slurm does, and end it if it does not."""
    for number in (signal.SIGTERM, signal.SIGKILL):
        if process.poll() is not None:
            return
        _send(process, number)
        with suppress(subprocess.TimeoutExpired):
            process.wait(_GRACE_S)


def _send(process: subprocess.Popen[bytes], number: int) -> None:
    with suppress(ProcessLookupError):
        os.killpg(process.pid, number)


def _words(check: Check, answer: Path, case: Path) -> list[str]:
    budget = [] if check.max_peak is None else ["--max-peak", check.max_peak]
    return [
        *(sys.executable, "-m", "oomdoctor", "run", "--emulate", check.gpu, "--breakdown"),
        *("--report", str(answer), "--case", str(case), "--quiet", *budget, *check.options),
    ]


def peak_of(report: Report, folder: Path) -> CheckPeak | None:
    """The fullest GPU of a run at its peak; None if nothing was measured."""
    worst = fullest(report.ranks)
    if worst is None or worst.peak_device_bytes is None:
        return None
    held = next((device.peak for device in report.devices if device.peak is not None), None)
    return CheckPeak(
        peak_device_bytes=worst.peak_device_bytes,
        peak_reserved_bytes=worst.peak_reserved_bytes,
        peak_allocated_bytes=worst.peak_allocated_bytes,
        categories=None if held is None else held.categories,
        lines=() if held is None else tuple(_lines(held.blocks, folder)),
        versions=report.versions,
    )


def _lines(blocks: Sequence[HeldBlocks], folder: Path) -> Iterator[HeldLine]:
    for block in blocks[:_MOST_LINES]:
        where = block.where or block.library_where
        if where is not None:
            code = linecache.getline(str(folder / where.file), where.line).strip() or None
            called = block.library_where if block.where is not None else None
            library = None if called in (None, where) else _relative(called, folder)
            yield HeldLine(block.category, _relative(where, folder), code, block.bytes, library)


def _relative(where: Place, folder: Path) -> Place:
    """The place with its file relative to the folder of the checks, or to that of packages."""
    path = PurePath(where.file)
    with suppress(ValueError):
        return replace(where, file=str(path.relative_to(folder)))
    parts = path.parts
    for name in ("site-packages", "dist-packages"):
        if name in parts:
            return replace(where, file=str(PurePath(*parts[parts.index(name) + 1 :])))
    return where
