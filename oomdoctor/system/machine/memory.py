"""The host memory that this process may use: the kernel's number, lowered by every limit on it.

Limits come from cgroup v2, cgroup v1 and Slurm; psutil does not know them. Apart from the limits,
psutil would read the same two fields of /proc/meminfo, but the light install does not have it.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path, PurePosixPath

from oomdoctor.errors import machine_error
from oomdoctor.system.environment import slurm

_PROC = Path("/proc")
_CGROUPS = Path("/sys/fs/cgroup")


def total_memory(proc: Path = _PROC, cgroups: Path = _CGROUPS) -> int:
    """The most host memory that this process can ever have, in bytes: MemTotal or a limit."""
    limits = [limit for limit, _ in _cgroup_limits(proc, cgroups)]
    return min([_meminfo(proc, "MemTotal"), *limits, *_slurm_limit()])


def available_memory(proc: Path = _PROC, cgroups: Path = _CGROUPS) -> int:
    """The host memory that this process can use now without swapping or being killed, in bytes.

    This is the kernel's MemAvailable, or less if a cgroup above us has less left: its limit minus
    its usage. Inactive file cache counts as free, because the kernel drops it first. Slurm's grant
    is also a limit; without a cgroup its usage is unknown.
    """
    rooms = [max(0, limit - used) for limit, used in _cgroup_limits(proc, cgroups)]
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


def _cgroup_limits(proc: Path, cgroups: Path) -> Iterator[tuple[int, int]]:
    """(limit, unreclaimable usage) in bytes of each cgroup that limits memory."""
    try:
        lines = (proc / "self" / "cgroup").read_text().splitlines()
    except OSError:
        return
    for line in lines:
        number, controllers, path = ([*line.split(":", 2), "", ""])[:3]
        if number == "0" and not controllers:
            for folder in _folders(cgroups, path):
                yield from _limit(folder, "memory.max", "memory.current", "inactive_file")
        elif "memory" in controllers.split(","):
            for folder in _folders(cgroups / "memory", path):
                yield from _limit(
                    folder,
                    "memory.limit_in_bytes",
                    "memory.usage_in_bytes",
                    "total_inactive_file",
                )


def _folders(root: Path, path: str) -> Iterator[Path]:
    """The cgroup and all its parents.

    A path outside a container's namespace does not exist here; then the mounted root is the
    container's own cgroup.
    """
    inner = PurePosixPath(path.lstrip("/"))
    if ".." not in inner.parts:
        for part in (inner, *inner.parents):
            if part != PurePosixPath("."):
                yield root / part
    yield root


def _limit(folder: Path, limit: str, usage: str, cache: str) -> Iterator[tuple[int, int]]:
    ceiling, used = _integer(folder / limit), _integer(folder / usage)
    if ceiling is not None and used is not None:
        yield ceiling, max(0, used - _statistic(folder / "memory.stat", cache))


def _integer(path: Path) -> int | None:
    try:
        return int(path.read_text())  # "max" means no limit, and is not an integer either
    except (OSError, ValueError):
        return None


def _statistic(path: Path, name: str) -> int:
    try:
        text = path.read_text()
    except OSError:
        return 0
    return next((int(line.split()[1]) for line in text.splitlines() if line.split()[0] == name), 0)


def oom_kills(proc: Path = _PROC, cgroups: Path = _CGROUPS) -> int:
    """How often the kernel has killed for lack of memory, in our cgroups and machine-wide.

    If it grew during a child's life, the child's SIGKILL came from the kernel. Sources:
    `memory.events` and `memory.oom_control` (cgroup v2 and v1), `/proc/vmstat`.
    """
    count = _statistic(proc / "vmstat", "oom_kill")
    try:
        lines = (proc / "self" / "cgroup").read_text().splitlines()
    except OSError:
        return count
    for line in lines:
        number, controllers, path = ([*line.split(":", 2), "", ""])[:3]
        if number == "0" and not controllers:
            counts = [_statistic(f / "memory.events", "oom_kill") for f in _folders(cgroups, path)]
        elif "memory" in controllers.split(","):
            folders = _folders(cgroups / "memory", path)
            counts = [_statistic(f / "memory.oom_control", "oom_kill") for f in folders]
        else:
            continue
        count += max(counts, default=0)
    return count


def oom_kills_here(proc: Path = _PROC, cgroups: Path = _CGROUPS) -> int:
    """How often the kernel has killed a process of our innermost cgroup for lack of memory.

    That counts kills for lack of the machine's memory too. Where no cgroup counts, the number is
    that of the machine.
    """
    try:
        lines = (proc / "self" / "cgroup").read_text().splitlines()
    except OSError:
        lines = []
    for line in lines:
        number, controllers, path = ([*line.split(":", 2), "", ""])[:3]
        if number == "0" and not controllers:
            files = [folder / "memory.events" for folder in _folders(cgroups, path)]
        elif "memory" in controllers.split(","):
            files = [folder / "memory.oom_control" for folder in _folders(cgroups / "memory", path)]
        else:
            continue
        counted = next((file for file in files if _counts_kills(file)), None)
        if counted is not None:
            return _statistic(counted, "oom_kill")
    return _statistic(proc / "vmstat", "oom_kill")


def _counts_kills(file: Path) -> bool:
    try:
        return "oom_kill " in file.read_text()
    except OSError:
        return False
