"""What is seen from outside while a command runs, and what ended it that it could not print.

A thread looks a few times a second whether a process has noted that memory ran out, and asks the
driver then, while that process still holds its memory.

The kernel, a full /dev/shm and Slurm leave no line in the output of what they end. The lines here
stand for them, so that `explain` can answer; they say only what was counted or measured.
"""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace
from pathlib import Path

from oomdoctor.commands.run.process.command import Ended
from oomdoctor.commands.run.process.streams import Tail
from oomdoctor.commands.run.rank_records import Process
from oomdoctor.errors import OomDoctorError
from oomdoctor.records.job.machine import Gpu
from oomdoctor.records.report.run import HostMemory
from oomdoctor.system.environment import variable
from oomdoctor.system.machine.limits import available_memory, oom_kills_here, total_memory
from oomdoctor.units import MIB, format_bytes

_NEARLY_FULL = 0.02  # of /dev/shm; one more batch does not fit then
_BEFORE_LIMIT_S = 60  # Slurm asks a job to end some time before it kills it
_LOOK_S = 0.2
_HOST_EVERY = 5  # looks from one sample of the host's memory to the next
_SHM = "/dev/shm"


def lines_from_outside(
    ended: Ended, processes: Sequence[Process], host: HostMemory | None
) -> list[str]:
    """Lines of a log about what ended the command; empty if nothing is known."""
    if host is None or ended.exit_code == 0:
        return []
    lines = []
    if host.kernel_kills and was_killed(ended, processes):
        times = "a process" if host.kernel_kills == 1 else f"{host.kernel_kills} processes"
        lines.append(
            f"oomdoctor: the kernel killed {times} for lack of host memory; of "
            f"{format_bytes(host.total_bytes)}, {format_bytes(host.least_available_bytes)} was "
            "available at the least"
        )
    if _by_signal(ended, signal.SIGBUS) and _shm_was_full(host):
        free, total = host.shm_least_free_bytes or 0, host.shm_total_bytes or 0
        lines.append(
            f"oomdoctor: a bus error ended the command, and /dev/shm was full: "
            f"{format_bytes(free)} of {format_bytes(total)} was free"
        )
    return lines


def was_killed(ended: Ended, processes: Sequence[Process]) -> bool:
    """Whether signal 9 ended the command, or may have ended a process of it.

    A process that is killed leaves no last record.
    """
    killed = any(
        not process.record["ended"] and not process.record["exception"] for process in processes
    )
    return _by_signal(ended, signal.SIGKILL) or killed


def cut_off(processes: Sequence[Process]) -> list[int]:
    """The ranks that were killed, if nothing else says why the command failed.

    What they needed after their last record is not known.
    """
    records = [process.record for process in processes]
    if any(record["exception"] or record["ooms"] for record in records):
        return []
    return [process.rank for process in processes if not process.record["ended"]]


def unless_stopped(ended: Ended, processes: Sequence[Process]) -> Ended:
    """How the command ended, if nothing but the end of a training that was stopped failed.

    A notebook ends with an error where its cell exits, and so do some launchers. Ray catches the
    exit of a worker, and the program that waits for the worker fails.
    """
    stopped = [process.record for process in processes if process.record["stopped"]]
    errors = {(process.record["exception"] or {}).get("type") for process in processes} - {None}
    if any(record.get("is_ray_worker") for record in stopped):
        errors.add("SystemExit")
    if stopped and ended.status > 0 and ended.signal is None and errors == {"SystemExit"}:
        return Ended(0, None)
    return ended


def notes_from_outside(ended: Ended, host: HostMemory | None) -> list[str]:
    """Sentences about an end that is not for lack of memory, or of which that is not known."""
    notes = []
    job, end = variable("SLURM_JOB_ID"), variable("SLURM_JOB_END_TIME") or ""
    asked = ended.signal == signal.SIGTERM or ended.exit_code == 128 + signal.SIGTERM
    if job and asked:
        at_limit = end.isdigit() and time.time() >= int(end) - _BEFORE_LIMIT_S
        why = "at its time limit" if at_limit else "before its time limit"
        reason = why if end.isdigit() else "or somebody else did"
        notes.append(f"Slurm ended job {job} {reason}: the command got SIGTERM")
    if _by_signal(ended, signal.SIGKILL) and host is not None and not host.kernel_kills:
        notes.append(
            "signal 9 ended the command, but the kernel counted no kill for lack of memory "
            f"(of {format_bytes(host.total_bytes)}, {format_bytes(host.least_available_bytes)} was "
            "available at the least), so "
            + (f"Slurm (job {job}) or a person sent it" if job else "somebody sent it")
        )
    return notes


def _by_signal(ended: Ended, number: int) -> bool:
    return ended.exit_code == 128 + number


def _shm_was_full(host: HostMemory) -> bool:
    if host.shm_total_bytes is None or host.shm_least_free_bytes is None:
        return False
    return host.shm_least_free_bytes < max(MIB, _NEARLY_FULL * host.shm_total_bytes)


@dataclass(slots=True)
class Samples:
    """What was seen. `gpus` is when memory ran out last, else at the start."""

    gpus: tuple[Gpu, ...] = ()
    host: HostMemory | None = None
    _seen: dict[str, int] = field(default_factory=dict)
    _kills_before: int = 0

    def begin(self) -> None:
        """Take the first sample of the host."""
        self._kills_before = oom_kills_here()
        self.look_at_host()

    def look_at_host(self) -> None:
        """Take a sample of the host; the least memory so far is kept."""
        with suppress(OomDoctorError, OSError):
            total, free = shared_memory()
            kills = max(0, oom_kills_here() - self._kills_before)
            now = HostMemory(total_memory(), available_memory(), kills, total, free)
            if self.host is not None:
                available = _least(now.least_available_bytes, self.host.least_available_bytes)
                free = _least(now.shm_least_free_bytes, self.host.shm_least_free_bytes)
                now = replace(now, least_available_bytes=available, shm_least_free_bytes=free)
            self.host = now

    def has_failed_again(self, folder: Path) -> bool:
        """Whether a process has run out of memory since the last call."""
        again = False
        for path in folder.glob("oom-*"):
            with suppress(OSError):
                at = path.stat().st_mtime_ns
                again |= self._seen.get(path.name) != at
                self._seen[path.name] = at
        return again


@dataclass(frozen=True, slots=True)
class Seen:
    """What was seen of a command: the folder that its processes shared, how it ended, what it
    printed, samples from outside, the real GPUs of this machine, and what its processes left.

    `waited_s` is how long it had waited after its training was stopped, if it was ended for that.
    """

    folder: Path
    ended: Ended
    tail: Tail
    samples: Samples
    here: tuple[Gpu, ...] = ()
    processes: tuple[Process, ...] = ()
    waited_s: float | None = None

    @property
    def failed(self) -> bool:
        """Whether the command ended with another exit code than 0."""
        return self.ended.exit_code != 0


def shared_memory() -> tuple[int | None, int | None]:
    """The size of /dev/shm and what is free of it, in bytes; None where there is none."""
    try:
        volume = os.statvfs(_SHM)
    except OSError:
        return None, None
    return volume.f_blocks * volume.f_frsize, volume.f_bavail * volume.f_frsize


@contextmanager
def sampled(
    folder: Path, gpus: tuple[Gpu, ...], list_gpus: Callable[[], tuple[Gpu, ...]]
) -> Iterator[Samples]:
    """Take samples while the block runs; `list_gpus` asks the driver."""
    samples, ended = Samples(gpus), threading.Event()
    samples.begin()

    def watch() -> None:
        looks = 0
        while not ended.wait(_LOOK_S):
            looks += 1
            if samples.has_failed_again(folder):
                samples.gpus = list_gpus() or samples.gpus
            if looks % _HOST_EVERY == 0:
                samples.look_at_host()

    thread = threading.Thread(target=watch, daemon=True)
    thread.start()
    try:
        yield samples
    finally:
        ended.set()
        thread.join()
        samples.look_at_host()


def _least(now: int | None, before: int | None) -> int | None:
    return now if before is None or now is None else min(now, before)
