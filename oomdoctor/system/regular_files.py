"""Opens files that somebody else may have made: a pipe or a device in their place is refused.

A named pipe would be waited for, and a device such as /dev/zero has no end.
"""

from __future__ import annotations

import errno
import os
import stat
from pathlib import Path


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


def text_of(path: Path, most_bytes: int) -> str:
    """The text of a regular file in UTF-8.

    Raises:
        OSError: it cannot be read, is not a regular file, or has more bytes.
        UnicodeDecodeError: it is not UTF-8.
    """
    with os.fdopen(opened(path), "rb") as file:
        content = file.read(most_bytes + 1)
    if len(content) > most_bytes:
        raise OSError(errno.EFBIG, f"larger than {most_bytes >> 20} MiB", str(path))
    return content.decode("utf-8")
