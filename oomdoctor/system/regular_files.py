"""Opens files that somebody else may have made: a pipe or a device in their place is refused.

A named pipe would be waited for, and a device such as /dev/zero has no end. A file that a person
names may be a pipe (`<(...)`) and is read up to a limit.
"""

from __future__ import annotations

import errno
import os
import stat
from pathlib import Path
from typing import BinaryIO


def opened(path: Path, flags: int = os.O_RDONLY) -> int:
    """The descriptor of a regular file, or of the one that a link leads to.

    Raises:
        OSError: it cannot be opened, or is not a regular file.
    """
    file = os.open(path, flags | os.O_NONBLOCK | os.O_CLOEXEC, 0o666)
    if stat.S_ISREG(os.fstat(file).st_mode):
        return file
    os.close(file)
    raise OSError(errno.EINVAL, "not a regular file", str(path))


def is_there(path: Path) -> bool:
    """Whether a regular file has this name, as far as this user may know.

    False in a folder that this user may not open, and for a name that no file can have.
    """
    try:
        return stat.S_ISREG(path.stat().st_mode)
    except (OSError, ValueError):
        return False


def is_denied(path: Path) -> bool:
    """Whether a file of this name is hidden by a folder that this user may not open."""
    try:
        path.stat()
    except PermissionError:
        return True
    except (OSError, ValueError):
        return False
    return False


def text_of(path: Path, most_bytes: int, errors: str = "strict") -> str:
    """The text of a regular file in UTF-8; `errors` says what becomes of other bytes.

    Raises:
        OSError: it cannot be read, is not a regular file, or has more bytes.
        UnicodeDecodeError: it is not UTF-8.
    """
    with os.fdopen(opened(path), "rb") as file:
        return _bounded(file, path, most_bytes).decode("utf-8", errors)


def bytes_of(path: Path, most_bytes: int) -> bytes:
    """The content of a file that a person named, which may be a pipe.

    Raises:
        OSError: it cannot be read, or has more bytes (EFBIG).
    """
    with path.open("rb") as file:
        return _bounded(file, path, most_bytes)


def _bounded(file: BinaryIO, path: Path, most_bytes: int) -> bytes:
    content = file.read(most_bytes + 1)
    if len(content) > most_bytes:
        raise OSError(errno.EFBIG, f"larger than {most_bytes >> 20} MiB", str(path))
    return content
