"""The limits on this process that can end a worker: addresses, memory, and tasks.

Login nodes set them with `ulimit` or with cgroups, such as the slice of a user. `memory` says how
much is left in all; this module names each limit.
"""

from __future__ import annotations

import os
import resource
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from oomdoctor.system.machine.cgroups import CGROUPS, PROC, memory_groups, task_groups
from oomdoctor.units import format_bytes

_NO_LIMIT = 1 << 60  # cgroup v1 writes a huge number

Kind = Literal["addresses", "memory", "tasks"]
GetLimit = Callable[[int], tuple[int, int]]


@dataclass(frozen=True, slots=True)
class HostLimit:
    """A limit: `left` is what is still free of it, in bytes, or in processes and threads.

    `words` names it. `can_be_raised`: by this user, to any value.
    """

    kind: Kind
    words: str
    left: int
    can_be_raised: bool = False


def host_limits(
    proc: Path = PROC, cgroups: Path = CGROUPS, get_limit: GetLimit = resource.getrlimit
) -> tuple[HostLimit, ...]:
    """Every limit on memory and tasks that is set."""
    return (
        *_of_addresses(get_limit),
        *_of_memory(proc, cgroups),
        *_of_tasks(proc, cgroups, get_limit),
    )


def tightest(kind: Kind, limits: tuple[HostLimit, ...]) -> HostLimit | None:
    """The limit of a kind that leaves least."""
    return min((one for one in limits if one.kind == kind), key=lambda one: one.left, default=None)


def _of_addresses(get_limit: GetLimit) -> Iterator[HostLimit]:
    soft, hard = get_limit(resource.RLIMIT_AS)
    if soft != resource.RLIM_INFINITY:
        words = f"`ulimit -v` allows each process {format_bytes(soft)}"
        yield HostLimit("addresses", words, soft, hard == resource.RLIM_INFINITY)


def _of_memory(proc: Path, cgroups: Path) -> Iterator[HostLimit]:
    for group in memory_groups(proc, cgroups):
        if group.limit_bytes < _NO_LIMIT:
            words = (
                f"the cgroup {group.name} allows {format_bytes(group.limit_bytes)} of memory, of "
                f"which {format_bytes(group.left_bytes)} is left"
            )
            yield HostLimit("memory", words, group.left_bytes)


def _of_tasks(proc: Path, cgroups: Path, get_limit: GetLimit) -> Iterator[HostLimit]:
    soft, hard = get_limit(resource.RLIMIT_NPROC)
    user = os.geteuid()
    if soft != resource.RLIM_INFINITY and user != 0:  # the administrator has no such limit
        left = max(0, soft - _tasks_of(user, proc))
        words = f"`ulimit -u` allows {soft} processes and threads, of which {left} are left"
        yield HostLimit("tasks", words, left, hard == resource.RLIM_INFINITY)
    for group in task_groups(proc, cgroups):
        left = max(0, group.limit - group.used)
        words = (
            f"the cgroup {group.name} allows {group.limit} processes and threads, of which {left} "
            "are left"
        )
        yield HostLimit("tasks", words, left)


def _tasks_of(user: int, proc: Path) -> int:
    """How many processes and threads the user has."""
    found = 0
    for process in proc.iterdir():
        if process.name.isdigit():
            try:
                if process.stat().st_uid == user:
                    found += sum(1 for _ in (process / "task").iterdir())
            except OSError:  # it has ended
                continue
    return found
