"""What ended a command from outside, which its own output does not say.

The kernel, a full /dev/shm and Slurm leave no line in the output of what they end. The lines here
stand for them, so that `explain` can answer; they say only what was counted or measured.
"""

from __future__ import annotations

import signal
import time
from collections.abc import Sequence

from oomdoctor.records.inside.run import HostMemory
from oomdoctor.runs.watched.running.command import Ended
from oomdoctor.runs.watched.seen.processes import Process
from oomdoctor.system.environment import variable
from oomdoctor.units import MIB, format_bytes

_NEARLY_FULL = 0.02  # of /dev/shm; one more batch does not fit then
_BEFORE_LIMIT_S = 60  # Slurm asks a job to end some time before it kills it


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
    killed = any(not one.record["ended"] and not one.record["exception"] for one in processes)
    return _by_signal(ended, signal.SIGKILL) or killed


def notes_from_outside(
    ended: Ended, processes: Sequence[Process], host: HostMemory | None, now: float | None = None
) -> list[str]:
    """Sentences about an end that is not for lack of memory, or of which that is not known."""
    notes = []
    job, end = variable("SLURM_JOB_ID"), variable("SLURM_JOB_END_TIME") or ""
    asked = ended.signal == signal.SIGTERM or ended.exit_code == 128 + signal.SIGTERM
    if job and asked:
        at_limit = end.isdigit() and (now or time.time()) >= int(end) - _BEFORE_LIMIT_S
        why = "at its time limit" if at_limit else "before its time limit"
        known = why if end.isdigit() else "or somebody else did"
        notes.append(f"Slurm ended job {job} {known}: the command got SIGTERM")
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
