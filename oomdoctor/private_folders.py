"""Folders whose files are run or loaded: nobody else may put files there, or replace them."""

from __future__ import annotations

import errno
import os
import shutil
import stat
from contextlib import suppress
from pathlib import Path

_OTHERS_WRITE = stat.S_IWGRP | stat.S_IWOTH


def made_private(folder: Path) -> bool:
    """Make a folder that only this user can write to; whether others could write there before.

    Raises:
        OSError: it cannot be made; it belongs to another user; or everybody can replace it.
    """
    folder.mkdir(parents=True, exist_ok=True, mode=0o700)
    state = folder.stat()
    if state.st_uid != os.geteuid():
        raise PermissionError(errno.EPERM, "it belongs to another user", str(folder))
    for parent in folder.resolve().parents:
        mode = parent.stat().st_mode
        if mode & stat.S_IWOTH and not mode & stat.S_ISVTX:
            raise PermissionError(errno.EPERM, f"everybody can write to {parent}", str(folder))
    if not state.st_mode & _OTHERS_WRITE:
        return False
    folder.chmod(0o700)
    return True


def remove(path: Path) -> None:
    """Remove a folder with all in it, a file, or a link but not what it leads to."""
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path, ignore_errors=True)
    else:
        with suppress(OSError):
            path.unlink(missing_ok=True)
