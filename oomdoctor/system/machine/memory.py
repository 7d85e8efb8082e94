"""The host memory that this process may use: the kernel's number, lowered by every limit on it.

Limits come from cgroup v2, cgroup v1 and Slurm; psutil does not know them. Apart from the limits,
psutil would read the same two fields of /proc/meminfo, but the light install does not have it.
"""

from __future__ import annotations

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
    for line in text.splitlines():
        name, _, rest = line.partition(":")
        if name == field:
            return int(rest.split()[0]) * 1024
    raise machine_error("no_memory_facts", f"{proc / 'meminfo'} has no {field}")


def oom_kills(proc: Path = PROC, cgroups: Path = CGROUPS) -> int:
    """How often the kernel has killed for lack of memory, in our cgroups and machine-wide.

    If it grew during a child's life, the child's SIGKILL came from the kernel. Sources:
    `memory.events` and `memory.oom_control` (cgroup v2 and v1), `/proc/vmstat`.
    """
    count = statistic(proc / "vmstat", "oom_kill")
    for files in _kill_counters(proc, cgroups):
        count += max((statistic(file, "oom_kill") for file in files), default=0)
    return count


def oom_kills_here(proc: Path = PROC, cgroups: Path = CGROUPS) -> int:
    """How often the kernel has killed a process of our innermost cgroup for lack of memory.

    That counts kills for lack of the machine's memory too. Where no cgroup counts, the number is
    that of the machine.
    """
    for files in _kill_counters(proc, cgroups):
        counted = next((file for file in files if _counts_kills(file)), None)
        if counted is not None:
            return statistic(counted, "oom_kill")
    return statistic(proc / "vmstat", "oom_kill")


def _kill_counters(proc: Path, cgroups: Path) -> list[list[Path]]:
    """The files that count kills, from the innermost cgroup outwards, for each hierarchy."""
    return [
        [folder / ("memory.events" if version == 2 else "memory.oom_control") for folder in folders]
        for version, folders in groups_of("memory", proc, cgroups)
    ]


def _counts_kills(file: Path) -> bool:
    try:
        return "oom_kill " in file.read_text()
    except OSError:
        return False
