"""The host memory that this process may use: the kernel's number, lowered by every limit on it.

Limits come from cgroup v2, cgroup v1 and Slurm; psutil does not know them. Apart from the limits,
psutil would read the same two fields of /proc/meminfo, but the light install does not have it.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

from oomdoctor.errors import machine_error
from oomdoctor.system.environment import slurm
from oomdoctor.system.machine.limits import CGROUPS, PROC, groups_of, memory_groups, statistic


def total_memory(proc: Path = PROC, cgroups: Path = CGROUPS) -> int:
    """The most host memory that this process can ever have, in bytes: MemTotal or a limit."""
    limits = [group.limit for group in memory_groups(proc, cgroups)]
    return min([_meminfo(proc, "MemTotal"), *limits, *_slurm_limit()])


def available_memory(proc: Path = PROC, cgroups: Path = CGROUPS) -> int:
    """The host memory that this process can use now without swapping or being killed, in bytes.

    This is the kernel's MemAvailable, or less if a cgroup above us has less left: its limit minus
    its usage. Inactive file cache counts as free, because the kernel drops it first. Slurm's grant
    is also a limit; without a cgroup its usage is unknown.
    """
    rooms = [group.left for group in memory_groups(proc, cgroups)]
    return min([_meminfo(proc, "MemAvailable"), *rooms, *_slurm_limit()])


def _slurm_limit() -> list[int]:
    limit = slurm().memory_bytes
    return [limit] if limit else []


def _meminfo(proc: Path, field: str) -> int:
    try:
        text = (proc / "meminfo").read_text()
    except OSError as error:
        raise machine_error(
            "no_memory_facts",
            f"cannot read the host memory from {proc / 'meminfo'}: {error.strerror}",
            "run oomdoctor on Linux with /proc mounted",
        ) from None
    found = re.search(rf"^{field}:\s*(\d+)", text, re.MULTILINE)
    if found is None:
        raise machine_error("no_memory_facts", f"{proc / 'meminfo'} has no {field}")
    return int(found[1]) * 1024


def oom_kills(proc: Path = PROC, cgroups: Path = CGROUPS) -> int:
    """How often the kernel has killed for lack of memory, in our cgroups and machine-wide.

    If it grew during a child's life, the child's SIGKILL came from the kernel. Sources:
    `memory.events` and `memory.oom_control` (cgroup v2 and v1), `/proc/vmstat`.
    """
    count = statistic(proc / "vmstat", "oom_kill") or 0
    return count + sum(max(counts, default=0) for counts in _kill_counts(proc, cgroups))


def oom_kills_here(proc: Path = PROC, cgroups: Path = CGROUPS) -> int:
    """How often the kernel has killed a process of our innermost cgroup for lack of memory.

    That counts kills for lack of the machine's memory too. Where no cgroup counts, the number is
    that of the machine.
    """
    innermost = (counts[0] for counts in _kill_counts(proc, cgroups) if counts)
    return next(innermost, statistic(proc / "vmstat", "oom_kill") or 0)


def _kill_counts(proc: Path, cgroups: Path) -> Iterator[list[int]]:
    """The kills that cgroups count, from the innermost outwards, for each hierarchy."""
    for version, folders in groups_of("memory", proc, cgroups):
        file = "memory.events" if version == 2 else "memory.oom_control"
        counts = (statistic(folder / file, "oom_kill") for folder in folders)
        yield [count for count in counts if count is not None]
