"""Opens files that somebody else may have made: a pipe or a device in their place is refused.

A named pipe would be waited for, and a device such as /dev/zero has no end. A file that a person
names may be a pipe (`<(...)`) and is read up to a limit. A change of the text of a file leaves its
line ends and its byte order mark as they are.
"""

from __future__ import annotations

import difflib
import errno
import os
import re
import stat
from codecs import BOM_UTF8
from collections import Counter
from collections.abc import Iterable
from contextlib import suppress
from datetime import UTC, datetime
from pathlib import Path
from typing import BinaryIO

_END = re.compile(r"\r\n|\r|\n")


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


def exists(path: Path) -> bool:
    """Whether there is a file or a folder, readable or not."""
    try:
        path.stat()
    except OSError as error:
        # A file without read permission exists: reading it reports the error.
        return isinstance(error, PermissionError)
    except ValueError:  # a name with a NUL
        return False
    return True


def latest_first(paths: Iterable[Path]) -> list[Path]:
    """The files that are still there, the one that was written last first."""
    dated: list[tuple[float, Path]] = []
    for path in paths:
        with suppress(OSError):
            dated.append((path.stat().st_mtime, path))
    return [path for _, path in sorted(dated, reverse=True)]


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
    except (OSError, ValueError) as error:
        return isinstance(error, PermissionError)
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


def plain_text(content: bytes) -> str:
    """The text of a file in UTF-8, each of its lines ended by a line feed."""
    return _END.sub("\n", content.decode("utf-8-sig"))


def with_line_ends(content: bytes, text: str) -> bytes:
    r"""A changed `plain_text` as a file again. Lines that stay keep their ends, such as `\r\n`;
    new ones get the most frequent.
    """
    ends: list[str] = _END.findall(content.decode("utf-8-sig"))
    usual = Counter(ends).most_common(1)[0][0] if ends else "\n"
    before, after = plain_text(content).split("\n"), text.split("\n")
    chosen = [usual] * (len(after) - 1)
    matcher = difflib.SequenceMatcher(None, before, after, autojunk=False)
    for start, at, size in matcher.get_matching_blocks():
        for place in range(min(size, len(ends) - start, len(chosen) - at)):
            chosen[at + place] = ends[start + place]
    joined = "".join(map("".join, zip(after, [*chosen, ""], strict=True)))
    return (BOM_UTF8 if content.startswith(BOM_UTF8) else b"") + joined.encode()


def size_of(path: Path) -> tuple[int, str | None]:
    """The bytes that a folder takes on the disk, and when a file in it was written last (UTC).

    A file with two names counts once; links count as links.
    """
    total, latest, seen = 0, 0.0, set[tuple[int, int]]()
    for folder, inner, files in [(str(path), [], [""]), *os.walk(path)]:
        for name in [*inner, *files]:
            with suppress(OSError):
                status = os.lstat(os.path.join(folder, name) if name else folder)  # noqa: PTH118
                if (status.st_dev, status.st_ino) not in seen:
                    seen.add((status.st_dev, status.st_ino))
                    total += status.st_blocks * 512
                    if not stat.S_ISDIR(status.st_mode):
                        latest = max(latest, status.st_mtime)
    when = datetime.fromtimestamp(latest, UTC).isoformat(timespec="seconds") if latest else None
    return total, when
