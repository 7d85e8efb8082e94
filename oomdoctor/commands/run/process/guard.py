"""Ends what is left of a run, also if oomdoctor itself is killed.

Run as a program it waits until the pipe on its stdin is closed. A byte before that says that all
went well. It cannot import oomdoctor then, so the name of the variable that the processes of a run
have is its second argument.
"""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

_PATIENCE_S = 5.0  # between SIGTERM and SIGKILL
_LEAVING_S = 2.0  # for processes that are ending by themselves
_POLL_S = 0.05


@contextmanager
def guarded(folder: Path) -> Iterator[None]:
    """Guard a session while the block runs: if we are killed, its processes and folder go."""
    guard = subprocess.Popen(
        [sys.executable, "-I", "-S", __file__, str(folder), _own_variable()],
        stdin=subprocess.PIPE,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
        bufsize=0,
    )
    assert guard.stdin is not None
    try:
        yield
    finally:
        with suppress(OSError):
            guard.stdin.write(b".")
        guard.stdin.close()
        guard.wait()


def _own_variable() -> str:
    from oomdoctor.system.environment import WATCH_FOLDER

    return WATCH_FOLDER


def processes_of(folder: Path, variable: str | None = None) -> list[int]:
    """The processes that were started with this session folder in their environment."""
    wanted = f"{variable or _own_variable()}={folder}".encode()
    pids = []
    for entry in Path("/proc").iterdir():
        if not entry.name.isdigit():
            continue
        with suppress(OSError):  # it ended, or is another user's
            if wanted in (entry / "environ").read_bytes().split(b"\0"):
                pids.append(int(entry.name))
    return pids


def end_left_over(folder: Path) -> None:
    """End processes that used the GPUs of a session and go on although its command has ended."""
    names = [path.stem.partition("-")[2] for path in folder.glob("process-*.json")]
    used = {int(name) for name in names if name.isdigit()}
    end = time.monotonic() + _LEAVING_S
    while any(Path("/proc", str(pid)).exists() for pid in used):
        if time.monotonic() > end:
            end_processes(folder, used)
            return
        time.sleep(_POLL_S)


def end_processes(folder: Path, only: set[int] | None = None, variable: str | None = None) -> None:
    """Ask processes of a session to end, and kill those that do not; `only` these, or all."""
    end = time.monotonic() + _PATIENCE_S
    asked: set[int] = set()
    while left := [pid for pid in processes_of(folder, variable) if only is None or pid in only]:
        now = time.monotonic()
        for pid in left:
            if now > end:
                _send(pid, signal.SIGKILL)
            elif pid not in asked:
                asked.add(pid)
                _send(pid, signal.SIGTERM)
                _send(pid, signal.SIGCONT)  # it may be suspended
        if now > end + _PATIENCE_S:
            return  # what cannot be killed waits for a disk
        time.sleep(_POLL_S)


def _send(pid: int, number: int) -> None:
    with suppress(OSError):
        os.kill(pid, number)


def _guard(folder: Path, variable: str) -> None:
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    if os.read(0, 1):
        return
    end_processes(folder, variable=variable)
    shutil.rmtree(folder, ignore_errors=True)


if __name__ == "__main__":
    _guard(Path(sys.argv[1]), sys.argv[2])
