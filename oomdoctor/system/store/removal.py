"""Deletes the folder of a run or a case, and nothing else.

The folder must lie directly in the folder of runs or cases, be no link, have a name as oomdoctor
gives it, and hold its file. It is locked, renamed, and then deleted, so that no other process sees
half of it. Links in it are removed, not followed.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import shutil
from pathlib import Path

from oomdoctor.records.history.runs import StoredRun
from oomdoctor.system.store.cases import CASE, cases_dir
from oomdoctor.system.store.run_folders import REQUEST, RUN_NAME, RUNNING, folders, runs_dir

_TRASH = ".deleted-"


def remove(run: StoredRun) -> str | None:
    """Delete a run; returns why it was left alone, or None if it is gone."""
    root, mark = (cases_dir(), CASE) if run.kind == "case" else (runs_dir(), REQUEST)
    path = root / run.name
    if not RUN_NAME.fullmatch(run.name) or Path(run.path) != path:
        return "its name is not one that oomdoctor gives"
    if path.is_symlink() or not path.is_dir():
        return "it is a link, or no folder"
    if not (path / mark).is_file():
        return f"it has no {mark}"
    try:
        lock = os.open(path / RUNNING, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW, 0o600)
    except OSError as error:
        return error.strerror or str(error)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return "it is still running"
    except OSError:
        pass  # a file system without locks: nobody else can hold one either
    try:
        trash = root / f"{_TRASH}{run.name}-{os.getpid()}"
        path.rename(trash)
        shutil.rmtree(trash)
    except OSError as error:
        return f"{error.strerror or error}"
    finally:
        os.close(lock)
    return None


def remove_leftovers() -> None:
    """Delete what a killed process had renamed and not yet deleted."""
    for root in (runs_dir(), cases_dir()):
        for path in folders(root):
            if path.name.startswith(_TRASH) and not path.is_symlink():
                with contextlib.suppress(OSError):
                    shutil.rmtree(path)
