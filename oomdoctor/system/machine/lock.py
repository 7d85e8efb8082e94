"""One survey at a time per device: a file lock that the kernel releases when its process ends.

The lock covers the processes of one user. NVML shows what other users run on a GPU.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import json
import logging
import os
import platform
import re
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import IO, Any

from oomdoctor.errors import machine_error
from oomdoctor.system.environment import state_dir
from oomdoctor.system.regular_files import opened

_LOG = logging.getLogger(__name__)
_POLL_S = 0.5
_BUSY = {errno.EWOULDBLOCK, errno.EACCES}


@contextlib.contextmanager
def device_lock(
    device_id: str,
    wait: bool,
    on_wait: Callable[[str], None],
    *,
    run: str | None = None,
    keep_waiting: Callable[[], bool] = lambda: True,
) -> Iterator[None]:
    """Lock a device (GPU UUID or "cpu") against other surveys of this user.

    With `wait`, `on_wait` is called once with the holder, and waiting continues as long as
    `keep_waiting` returns true (checked twice a second). Others see the holder as `run`. On a file
    system without locks the survey runs without one.

    Raises:
        OomDoctorError: the device is busy and we do not wait (any longer), or the state folder
            cannot be written (exit 5).
    """
    # A UUID is unique, but "cpu" is another device on each host that shares the home folder.
    name = f"cpu-{platform.node()}" if device_id == "cpu" else device_id
    path = state_dir() / "locks" / f"{re.sub(r'[^A-Za-z0-9.-]+', '-', name)}.lock"
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        # Without O_TRUNC, which would erase the holder's name.
        file = os.fdopen(opened(path, os.O_RDWR | os.O_CREAT), "r+", encoding="utf-8")
    except OSError as error:
        raise machine_error(
            "state_unwritable",
            f"cannot create the lock {path}: {error.strerror}",
            "free some space, or set XDG_STATE_HOME to a writable folder",
        ) from error
    with file:
        announced = False
        while not take_lock(file):
            holder = _holder(file)
            if not wait or (announced and not keep_waiting()):
                raise machine_error(
                    "device_busy",
                    f"another survey is measuring on {device_id}{holder}; two at once would give "
                    "wrong results",
                    "add --wait to start when it ends, or choose another --device",
                )
            if not announced:
                on_wait(f"waiting for another survey on {device_id}{holder}")
                announced = True
            time.sleep(_POLL_S)
        try:
            os.ftruncate(file.fileno(), 0)
            os.pwrite(file.fileno(), json.dumps({"pid": os.getpid(), "run": run}).encode(), 0)
        except OSError as error:  # a full disk: the lock still works, only the name is missing
            _LOG.debug("cannot write the name of the lock's holder: %s", error)
        yield


@contextlib.contextmanager
def mark(path: Path) -> Iterator[None]:
    """Hold a lock on a file while the block runs; the kernel lets go of it if the process dies.

    A file system without locks, or a full disk, leaves the mark out.
    """
    try:
        file = os.fdopen(opened(path, os.O_WRONLY | os.O_CREAT), "w")
    except OSError as error:
        _LOG.debug("cannot mark %s: %s", path, error)
        yield
        return
    with file:
        take_lock(file)
        yield


def is_marked(path: Path) -> bool:
    """Whether a process holds the lock of `mark`."""
    try:
        with os.fdopen(opened(path)) as file:
            fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except OSError as error:
        return error.errno in _BUSY
    return False


def take_lock(file: IO[str] | int, *, quiet: bool = False) -> bool:
    """Take the lock of a file, unless another process holds it; true where there are no locks."""
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        if error.errno in _BUSY:
            return False
        _LOG.log(
            logging.DEBUG if quiet else logging.WARNING,
            "this file system has no locks (%s), so another survey would go unnoticed",
            error,
        )
    return True


def _holder(file: IO[str]) -> str:
    """Who holds the lock, as ` (process 123, run NAME)`; empty if unknown."""
    try:
        file.seek(0)
        holder: Any = json.loads(file.read())
        pid, run = holder["pid"], holder["run"]
    except (OSError, ValueError, TypeError, KeyError):
        return ""
    return f" (process {pid}, run {run})" if run else f" (process {pid})"
