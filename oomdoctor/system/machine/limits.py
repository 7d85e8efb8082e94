"""The host memory that this process may use, and the limits on it that can end a worker.

That is the kernel's number, lowered by every limit on memory; there are limits on addresses and on
tasks, too. Login nodes set them with `ulimit` or with cgroups, such as the slice of a user. A
systemd slice, a container and a Slurm step are cgroups too. All files can be read by everybody.
psutil knows no limits, and the light install does not have it.
"""

from __future__ import annotations

import os
import re
import resource
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path, PurePosixPath
from typing import Literal

from oomdoctor.errors import machine_error
from oomdoctor.system.environment import slurm
from oomdoctor.units import format_bytes

Kind = Literal["addresses", "memory", "tasks"]
_NO_LIMIT = 1 << 60  # cgroup v1 writes a huge number
PROC = Path("/proc")
CGROUPS = Path("/sys/fs/cgroup")


@dataclass(frozen=True, slots=True)
class HostLimit:
    """A limit: `left` is what is still free of it, in bytes, or in processes and threads.

    `words` names it. `can_be_raised`: by this user, to any value.
    """

    kind: Kind
    words: str
    left: int
    can_be_raised: bool = False


def host_limits() -> tuple[HostLimit, ...]:
    """Every limit on memory and tasks that is set."""
    return (*_of_addresses(), *_of_memory(), *_of_tasks())


def tightest(kind: Kind, limits: tuple[HostLimit, ...]) -> HostLimit | None:
    """The limit of a kind that leaves least."""
    return min(
        (limit for limit in limits if limit.kind == kind),
        key=lambda limit: limit.left,
        default=None,
    )


def _of_addresses() -> Iterator[HostLimit]:
    soft, hard = resource.getrlimit(resource.RLIMIT_AS)
    if soft != resource.RLIM_INFINITY:
        words = f"`ulimit -v` allows each process {format_bytes(soft)}"
        yield HostLimit("addresses", words, soft, hard == resource.RLIM_INFINITY)


def _of_memory() -> Iterator[HostLimit]:
    for group in memory_groups():
        if group.limit < _NO_LIMIT:
            words = (
                f"the cgroup {group.name} allows {format_bytes(group.limit)} of memory, of "
                f"which {format_bytes(group.left)} is left"
            )
            yield HostLimit("memory", words, group.left)


def _of_tasks() -> Iterator[HostLimit]:
    soft, hard = resource.getrlimit(resource.RLIMIT_NPROC)
    user = os.geteuid()
    if soft != resource.RLIM_INFINITY and user != 0:  # the administrator has no such limit
        left = max(0, soft - _tasks_of(user))
        words = f"`ulimit -u` allows {soft} processes and threads, of which {left} are left"
        yield HostLimit("tasks", words, left, hard == resource.RLIM_INFINITY)
    for _, folders in groups_of("pids"):
        for _, group in _limited(folders, "pids.max", "pids.current"):
            words = (
                f"the cgroup {group.name} allows {group.limit} processes and threads, of which "
                f"{group.left} are left"
            )
            yield HostLimit("tasks", words, group.left)


def _tasks_of(user: int) -> int:
    """How many processes and threads the user has."""
    tasks = 0
    for process in PROC.iterdir():
        if process.name.isdigit():
            try:
                if process.stat().st_uid == user:
                    tasks += sum(1 for _ in (process / "task").iterdir())
            except OSError:  # it has ended
                continue
    return tasks


@dataclass(frozen=True, slots=True)
class Group:
    """A cgroup with a limit, in bytes of memory, or in processes and threads.

    File cache that the kernel can drop does not count as used.
    """

    name: str
    limit: int
    used: int

    @property
    def left(self) -> int:
        """What may still be used."""
        return max(0, self.limit - self.used)


def memory_groups() -> Iterator[Group]:
    """Each cgroup above this process that limits memory."""
    for version, folders in groups_of("memory"):
        limit, usage, cache = (
            ("memory.max", "memory.current", "inactive_file")
            if version == 2
            else ("memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file")
        )
        for folder, group in _limited(folders, limit, usage):
            idle = statistic(folder / "memory.stat", cache) or 0
            yield replace(group, used=max(0, group.used - idle))


def _limited(folders: Iterable[Path], limit: str, usage: str) -> Iterator[tuple[Path, Group]]:
    for folder in folders:
        ceiling, used = _integer(folder / limit), _integer(folder / usage)
        if ceiling is not None and used is not None:
            yield folder, Group(folder.name, ceiling, used)


def groups_of(controller: str) -> Iterator[tuple[int, list[Path]]]:
    """The version and the folders of each hierarchy with this controller, innermost first."""
    try:
        lines = (PROC / "self" / "cgroup").read_text().splitlines()
    except OSError:
        return
    for line in lines:
        number, controllers, path = ([*line.split(":", 2), "", ""])[:3]
        if number == "0" and not controllers:
            yield 2, list(_folders(CGROUPS, path))
        elif controller in controllers.split(","):
            yield 1, list(_folders(CGROUPS / controller, path))


def statistic(path: Path, name: str) -> int | None:
    """A number of a file of names and numbers; None if it is not there."""
    try:
        rows = [line.split() for line in path.read_text().splitlines()]
    except OSError:
        return None
    return next((int(row[1]) for row in rows if row[0] == name), None)


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


def total_memory() -> int:
    """The most host memory that this process can ever have, in bytes: MemTotal or a limit."""
    limits = [group.limit for group in memory_groups()]
    return min([_meminfo("MemTotal"), *limits, *_slurm_limit()])


def available_memory() -> int:
    """The host memory that this process can use now without swapping or being killed, in bytes.

    This is the kernel's MemAvailable, or less if a cgroup above us has less left: its limit minus
    its usage. Inactive file cache counts as free, because the kernel drops it first. Slurm's grant
    is also a limit; without a cgroup its usage is unknown.
    """
    rooms = [group.left for group in memory_groups()]
    return min([_meminfo("MemAvailable"), *rooms, *_slurm_limit()])


def _slurm_limit() -> list[int]:
    limit = slurm().memory_bytes
    return [limit] if limit else []


def _meminfo(field: str) -> int:
    try:
        text = (PROC / "meminfo").read_text()
    except OSError as error:
        raise machine_error(
            "no_memory_facts",
            f"cannot read the host memory from {PROC / 'meminfo'}: {error.strerror}",
            "run oomdoctor on Linux with /proc mounted",
        ) from None
    match = re.search(rf"^{field}:\s*(\d+)", text, re.MULTILINE)
    if match is None:
        raise machine_error("no_memory_facts", f"{PROC / 'meminfo'} has no {field}")
    return int(match[1]) * 1024


def oom_kills() -> int:
    """How often the kernel has killed for lack of memory, in our cgroups and machine-wide.

    If it grew during a child's life, the child's SIGKILL came from the kernel. Sources:
    `memory.events` and `memory.oom_control` (cgroup v2 and v1), `/proc/vmstat`.
    """
    count = statistic(PROC / "vmstat", "oom_kill") or 0
    return count + sum(max(counts, default=0) for counts in _kill_counts())


def oom_kills_here() -> int:
    """How often the kernel has killed a process of our innermost cgroup for lack of memory.

    That counts kills for lack of the machine's memory too. Where no cgroup counts, the number is
    that of the machine.
    """
    innermost = (counts[0] for counts in _kill_counts() if counts)
    return next(innermost, statistic(PROC / "vmstat", "oom_kill") or 0)


def _kill_counts() -> Iterator[list[int]]:
    """The kills that cgroups count, from the innermost outwards, for each hierarchy."""
    for version, folders in groups_of("memory"):
        file = "memory.events" if version == 2 else "memory.oom_control"
        counts = (statistic(folder / file, "oom_kill") for folder in folders)
        yield [count for count in counts if count is not None]
