"""Limits on this process are found, and named in words."""

from __future__ import annotations

import os
import resource
import subprocess
import sys
from pathlib import Path

import pytest

from oomdoctor.system.machine import limits as module
from oomdoctor.system.machine.limits import HostLimit, host_limits, tightest
from oomdoctor.units import GIB, MIB

NONE = resource.RLIM_INFINITY
SLICE = "user.slice/user-1000.slice"


@pytest.fixture
def login(tmp_path: Path) -> Path:
    """/proc and /sys/fs/cgroup of a login node with systemd, in a folder."""
    (tmp_path / "proc" / "self").mkdir(parents=True)
    (tmp_path / "proc" / "self" / "cgroup").write_text(f"0::/{SLICE}/session-3.scope\n")
    (tmp_path / "cgroup" / SLICE).mkdir(parents=True)
    return tmp_path


def limits(
    login: Path, addresses: tuple[int, int] = (NONE, NONE), tasks: tuple[int, int] = (NONE, NONE)
) -> tuple[HostLimit, ...]:
    found = {resource.RLIMIT_AS: addresses, resource.RLIMIT_NPROC: tasks}
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(module, "PROC", login / "proc")
        patch.setattr(module, "CGROUPS", login / "cgroup")
        patch.setattr(resource, "getrlimit", found.__getitem__)
        return host_limits()


def write(folder: Path, **files: str) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    for name, text in files.items():
        (folder / name.replace("__", ".")).write_text(text)


def test_no_limit_is_no_limit(login: Path) -> None:
    write(login / "cgroup" / SLICE, memory__max="max\n", memory__current="5\n", pids__max="max\n")
    assert limits(login) == ()
    assert tightest("memory", ()) is None


@pytest.mark.parametrize(("hard", "can_be_raised"), [(NONE, True), (2 * GIB, False)])
def test_ulimit_v(login: Path, hard: int, can_be_raised: bool) -> None:
    (limit,) = limits(login, addresses=(2 * GIB, hard))
    words = "`ulimit -v` allows each process 2.00 GiB"
    assert limit == HostLimit("addresses", words, 2 * GIB, can_be_raised)


def test_the_slice_of_a_user(login: Path) -> None:
    write(
        login / "cgroup" / SLICE,
        memory__max=f"{4 * GIB}\n",
        memory__current=f"{3 * GIB}\n",
        memory__stat=f"anon 7\ninactive_file {512 * MIB}\n",
        pids__max="100\n",
        pids__current="96\n",
    )
    write(login / "cgroup" / "user.slice", memory__max=f"{64 * GIB}\n", memory__current="0\n")
    found = limits(login)
    memory, tasks = tightest("memory", found), tightest("tasks", found)
    assert memory is not None and tasks is not None
    assert memory.left == 3 * GIB // 2
    assert memory.words == (
        "the cgroup user-1000.slice allows 4.00 GiB of memory, of which 1.50 GiB is left"
    )
    assert tasks.left == 4
    assert tasks.words == (
        "the cgroup user-1000.slice allows 100 processes and threads, of which 4 are left"
    )


def test_cgroup_v1(login: Path) -> None:
    (login / "proc" / "self" / "cgroup").write_text(
        "9:pids:/user/ann\n4:memory:/user/ann\n1:name=systemd:/x\n"
    )
    write(
        login / "cgroup" / "memory",
        memory__limit_in_bytes="9223372036854771712\n",
        memory__usage_in_bytes="1\n",
    )
    write(
        login / "cgroup" / "memory" / "user" / "ann",
        memory__limit_in_bytes=f"{GIB}\n",
        memory__usage_in_bytes=f"{256 * MIB}\n",
    )
    write(login / "cgroup" / "pids" / "user" / "ann", pids__max="50\n", pids__current="60\n")
    memory, tasks = limits(login)
    assert (memory.kind, memory.left) == ("memory", 768 * MIB)
    assert (tasks.kind, tasks.left) == ("tasks", 0)


def test_ulimit_u_counts_the_threads_of_the_user(
    login: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for pid, threads in {"7": 3, "8": 2}.items():
        for thread in range(threads):
            (login / "proc" / pid / "task" / str(thread)).mkdir(parents=True)
    owner = (login / "proc" / "7").stat().st_uid
    monkeypatch.setattr(os, "geteuid", lambda: owner + 1)
    (limit,) = limits(login, tasks=(9, NONE))
    assert limit.left == 9
    if owner != 0:
        monkeypatch.setattr(os, "geteuid", lambda: owner)
        (limit,) = limits(login, tasks=(9, NONE))
        assert (limit.left, limit.can_be_raised) == (4, True)
    monkeypatch.setattr(os, "geteuid", lambda: 0)
    assert limits(login, tasks=(9, NONE)) == ()


def test_a_limit_that_is_really_set() -> None:
    code = (
        "from oomdoctor.system.machine.limits import host_limits, tightest; "
        "print(tightest('addresses', host_limits()).words)"
    )
    shell = f'ulimit -v 2097152; exec "{sys.executable}" -c "{code}"'
    ended = subprocess.run(["bash", "-c", shell], capture_output=True, encoding="utf-8")
    assert ended.stdout == "`ulimit -v` allows each process 2.00 GiB\n", ended.stderr
