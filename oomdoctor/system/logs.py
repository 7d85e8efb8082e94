"""Reads logs as chunks of bytes: files, compressed files and standard input.

Only one chunk is in memory, so files may have any size. Other modules interpret the bytes.
"""

from __future__ import annotations

import gzip
import shlex
import sys
import zlib
from collections.abc import Iterator
from io import BufferedReader
from pathlib import Path
from typing import Any

from oomdoctor.errors import OomDoctorError, usage_error

_CHUNK = 1 << 18
_KINDS = ("*.out", "*.log", "*.txt")  # how the names of logs end; `run` leaves output.log
_CONTROLS = bytes({*range(1, 32)} - set(b"\a\b\t\n\v\f\r\x1b"))
_GZIP = b"\x1f\x8b"
_ZSTD = b"\x28\xb5\x2f\xfd"


def read_chunks(path: str | None) -> Iterator[bytes]:
    """The bytes of a log in chunks of at most 256 KiB; None and "-" are standard input.

    Compression is recognised by the first bytes, not by the name.

    Raises:
        OomDoctorError: the file cannot be opened, is damaged, or is compressed with Zstandard while
            no library for that is installed.
    """
    try:
        with _opened(path) as stream:
            yield from _decompressed(stream, path or "-")
    except OSError as error:
        what = f"cannot read {path or 'standard input'}: {error.strerror or error}"
        hint = "pass a text file, or pipe the text: oomdoctor explain - < FILE"
        typed = shlex.quote(str(path))
        if isinstance(error, IsADirectoryError):
            what = f"{path} is a folder"
            kinds = (kind for kind in _KINDS if any(Path(str(path)).glob(kind)))
            hint = f"name the files in it: oomdoctor explain {typed}/{next(kinds, _KINDS[0])}"
        elif isinstance(error, PermissionError):
            what = f"cannot read {path}: Permission denied"
            owner = f"ask its owner for a copy (ls -l {typed})"
            hint = f"{owner}, or pipe the text: oomdoctor explain -"
        raise usage_error("log_unreadable", what, hint) from None


def looks_binary(head: bytes) -> bool:
    """Whether the first bytes of a file are not text: many control characters other than NUL.

    NUL also occurs in UTF-16, and in logs that were cut by a full disk.
    """
    text = head.translate(None, b"\0")
    return len(text) - len(text.translate(None, _CONTROLS)) > len(text) // 32


def _opened(path: str | None) -> BufferedReader:
    if path is None or path == "-":
        return open(sys.stdin.fileno(), "rb", closefd=False)
    return Path(path).open("rb")


def _decompressed(stream: BufferedReader, name: str) -> Iterator[bytes]:
    # A pipe may deliver its first bytes one by one.
    head = b""
    while len(head) < 4 and (more := stream.read(4 - len(head))):
        head += more
    plain = _rest(head, stream)
    if head.startswith(_GZIP):
        yield from _gunzipped(plain, name)
    elif head.startswith(_ZSTD):
        yield from _unzstd(plain, name)
    else:
        yield from plain


def _rest(head: bytes, stream: BufferedReader) -> Iterator[bytes]:
    if head:
        yield head
    # read1, because on a terminal `read` would need Ctrl-D twice.
    while chunk := stream.read1(_CHUNK):
        yield chunk


def _gunzipped(chunks: Iterator[bytes], name: str) -> Iterator[bytes]:
    """All members of a gzip file, as log rotation writes them; raises at the end if it was cut."""
    source: Any = _Readable(chunks)  # the library only calls `read`
    try:
        with gzip.GzipFile(fileobj=source) as reader:
            while piece := reader.read1(_CHUNK):
                yield piece
    except EOFError:
        raise _damaged(name, "it ends too early", "zcat") from None
    except (zlib.error, gzip.BadGzipFile) as error:
        raise _damaged(name, str(error), "zcat") from None


def _unzstd(chunks: Iterator[bytes], name: str) -> Iterator[bytes]:
    try:
        import zstandard
    except ImportError:
        raise usage_error(
            "zstandard_missing",
            f"{name} is compressed with Zstandard, and the Python package zstandard is missing",
            f"run `pip install zstandard`, or: zstd -dc {shlex.quote(name)} | oomdoctor explain -",
        ) from None
    source: Any = _Readable(chunks)  # the library only calls `read`
    try:
        with zstandard.ZstdDecompressor().stream_reader(source, read_across_frames=True) as reader:
            empty = True
            while piece := reader.read(_CHUNK):
                empty = False
                yield piece
    except zstandard.ZstdError as error:
        raise _damaged(name, str(error), "zstd -dc") from None
    if empty:
        raise _damaged(name, "nothing in it can be decompressed", "zstd -dc")


class _Readable:
    """Chunks with the one method that a decompressor needs."""

    def __init__(self, chunks: Iterator[bytes]) -> None:
        self._chunks = chunks
        self._left = b""

    def read(self, size: int = -1) -> bytes:
        if not self._left:
            self._left = next(self._chunks, b"")
        if size < 0:
            size = len(self._left)
        piece, self._left = self._left[:size], self._left[size:]
        return piece


def _damaged(name: str, why: str, unpack: str) -> OomDoctorError:
    return usage_error(
        "log_damaged",
        f"{name} is damaged: {why}",
        f"{unpack} {shlex.quote(name)} | oomdoctor explain -",
    )
