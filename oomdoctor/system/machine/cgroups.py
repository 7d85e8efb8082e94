"""The cgroups of this process, versions 1 and 2: their limits, and what of them is used.

A systemd slice, a container and a Slurm step are cgroups too. All files can be read by everybody.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

PROC = Path("/proc")
CGROUPS = Path("/sys/fs/cgroup")


@dataclass(frozen=True, slots=True)
class MemoryGroup:
    """A cgroup that limits memory; file cache that the kernel can drop does not count as used."""

    name: str
    limit_bytes: int
    used_bytes: int

    @property
    def left_bytes(self) -> int:
        """What may still be used, in bytes."""
        return max(0, self.limit_bytes - self.used_bytes)


@dataclass(frozen=True, slots=True)
class TaskGroup:
    """A cgroup that limits the number of processes and threads."""

    name: str
    limit: int
    used: int


def memory_groups(proc: Path = PROC, cgroups: Path = CGROUPS) -> Iterator[MemoryGroup]:
    """Each cgroup above this process that limits memory."""
    for version, folders in groups_of("memory", proc, cgroups):
        limit, usage, cache = (
            ("memory.max", "memory.current", "inactive_file")
            if version == 2
            else ("memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file")
        )
        for folder in folders:
            ceiling, used = _integer(folder / limit), _integer(folder / usage)
            if ceiling is not None and used is not None:
                idle = statistic(folder / "memory.stat", cache)
                yield MemoryGroup(folder.name, ceiling, max(0, used - idle))


def task_groups(proc: Path = PROC, cgroups: Path = CGROUPS) -> Iterator[TaskGroup]:
    """Each cgroup above this process that limits processes and threads."""
    for _, folders in groups_of("pids", proc, cgroups):
        for folder in folders:
            ceiling, used = _integer(folder / "pids.max"), _integer(folder / "pids.current")
            if ceiling is not None and used is not None:
                yield TaskGroup(folder.name, ceiling, used)


def groups_of(
    controller: str, proc: Path = PROC, cgroups: Path = CGROUPS
) -> Iterator[tuple[int, list[Path]]]:
    """The version and the folders of each hierarchy with this controller, innermost first."""
    try:
        lines = (proc / "self" / "cgroup").read_text().splitlines()
    except OSError:
        return
    for line in lines:
        number, controllers, path = ([*line.split(":", 2), "", ""])[:3]
        if number == "0" and not controllers:
            yield 2, list(_folders(cgroups, path))
        elif controller in controllers.split(","):
            yield 1, list(_folders(cgroups / controller, path))


def statistic(path: Path, name: str) -> int:
    """A number of a file of names and numbers; 0 if it is not there."""
    try:
        text = path.read_text()
    except OSError:
        return 0
    return next((int(line.split()[1]) for line in text.splitlines() if line.split()[0] == name), 0)


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


def _integer(path: Path) -> int | None:
    try:
        return int(path.read_text())  # "max" means no limit, and is not an integer either
    except (OSError, ValueError):
        return None
