"""Read the rows of a data file one by one, in memory that does not grow with the file.

It reads JSON lines, a JSON array, CSV with a header and lines of text, all of them also gzipped,
and parquet if pyarrow is installed. A row that cannot be read is returned with a fault, never
skipped.
"""

from __future__ import annotations

import codecs
import csv
import gzip
import json
import zlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from io import BufferedIOBase
from pathlib import Path

LONGEST_LINE_BYTES = 64 * 1024**2  # nobody trains on a longer row
_CHUNK_BYTES = 1024**2
_FIRST_BYTES = 4096  # the first character that is not a space decides between an array and lines
# Except in lines, bytes that are not UTF-8 become surrogates. `text_of` finds them later.
_ESCAPED = "surrogateescape"
_BROKEN_OFF = (EOFError, gzip.BadGzipFile, zlib.error, OSError)


class DataFileError(Exception):
    """The file cannot be read at all; the message says why and what to do."""


@dataclass(frozen=True, slots=True)
class Row:
    """A row with its number, from 1. `value` is a dict or a text, or None with a `fault`."""

    number: int
    value: object
    fault: str | None = None


Rows = Iterator[Row]


@contextmanager
def open_rows(path: Path) -> Iterator[tuple[Rows, Callable[[], float]]]:
    """The rows of a file, and a function that returns the share of the file read so far.

    Rows have line numbers in files of lines. Otherwise they are counted without the header.

    Raises:
        DataFileError: the file is missing, its type is unknown, or pyarrow is missing.
    """
    kind = path.name.lower().removesuffix(".gz").rpartition(".")[2]
    if kind == "parquet":
        yield _parquet(path)
        return
    if kind not in _READERS:
        types = ", ".join(f".{name}" for name in (*_READERS, "parquet"))
        raise DataFileError(
            f"{path} has an unknown type; use {types}, optionally with .gz after them"
        )
    try:
        raw = path.open("rb")
    except OSError as error:
        raise DataFileError(f"{path} cannot be read: {error.strerror}") from None
    with raw:
        size = max(1, path.stat().st_size)
        is_packed = path.name.lower().endswith(".gz")
        unpacked = gzip.GzipFile(fileobj=raw) if is_packed else raw
        yield _whole(_READERS[kind](unpacked)), lambda: raw.tell() / size


def _whole(rows: Rows) -> Rows:
    """The rows up to the point where the file cannot be read, then a row with that fault."""
    number = 0
    try:
        for row in rows:
            number = row.number
            yield row
    except _BROKEN_OFF as error:
        yield Row(number + 1, None, f"cannot be read, nor can the rest of the file: {error}")


def _lines(file: BufferedIOBase) -> Iterator[tuple[int, bytes | None]]:
    """The lines that are not blank, with their numbers; None for a line that is too long."""
    number = 0
    while line := file.readline(LONGEST_LINE_BYTES):
        number += 1
        if len(line) == LONGEST_LINE_BYTES and not line.endswith(b"\n"):
            while (rest := file.readline(LONGEST_LINE_BYTES)) and not rest.endswith(b"\n"):
                pass
            yield number, None
            continue
        if number == 1:
            line = line.removeprefix(codecs.BOM_UTF8)
        if not line.isspace():
            yield number, line


def _by_line(file: BufferedIOBase, value_of: Callable[[bytes], object]) -> Rows:
    for number, line in _lines(file):
        if line is None:
            yield Row(number, None, f"is longer than {LONGEST_LINE_BYTES // 1024**2} MiB")
            continue
        try:
            yield Row(number, value_of(line))
        except UnicodeDecodeError:
            yield Row(number, None, "is not UTF-8 text")
        except (ValueError, RecursionError) as error:
            yield Row(number, None, f"is not JSON: {error}")


def _json_lines(file: BufferedIOBase) -> Rows:
    return _by_line(file, json.loads)


def _csv(file: BufferedIOBase) -> Rows:
    csv.field_size_limit(LONGEST_LINE_BYTES)
    pieces = iter(lambda: file.readline(LONGEST_LINE_BYTES), b"")
    lines = codecs.iterdecode(pieces, "utf-8-sig", errors=_ESCAPED)
    reader = csv.DictReader(lines)
    number = 0
    while True:
        number += 1
        try:
            yield Row(number, next(reader))
        except StopIteration:
            return
        except csv.Error as error:
            yield Row(number, None, f"is not CSV: {error}")


def _json(file: BufferedIOBase) -> Rows:
    """A JSON array, or JSON lines in a .json file; the first character decides."""
    start = file.read(_FIRST_BYTES).removeprefix(codecs.BOM_UTF8).lstrip()
    file.seek(0)
    return _json_array(file) if start.startswith(b"[") else _json_lines(file)


def _json_array(file: BufferedIOBase) -> Rows:
    """The elements of an array, up to the first fault: it hides where the next element begins."""
    decoder = codecs.getincrementaldecoder("utf-8-sig")(errors=_ESCAPED)
    decode = json.JSONDecoder().raw_decode
    pending = decoder.decode(file.read(_FIRST_BYTES))
    pending = pending[pending.index("[") + 1 :]
    number, at, size, ended = 0, 0, _CHUNK_BYTES, False
    while True:
        at = _skip(pending, at)
        if pending.startswith("]", at):
            return
        try:
            value, at = decode(pending, at)
        except (ValueError, RecursionError) as error:
            if ended or len(pending) - at > LONGEST_LINE_BYTES:
                yield Row(number + 1, None, f"is not JSON, so the rest cannot be read: {error}")
                return
            chunk = file.read(size)
            size *= 2  # so that a long element is not decoded again for every small chunk
            ended = not chunk
            pending, at = pending[at:] + decoder.decode(chunk, final=ended), 0
            continue
        number, size = number + 1, _CHUNK_BYTES
        yield Row(number, value)


def _skip(text: str, at: int) -> int:
    """Skip the spaces and the comma before an element."""
    while at < len(text) and (text[at].isspace() or text[at] == ","):
        at += 1
    return at


def _parquet(path: Path) -> tuple[Rows, Callable[[], float]]:
    try:
        import pyarrow.parquet
    except ImportError:
        raise DataFileError(
            f"{path} needs pyarrow, which is not installed; install it, or save JSON lines"
        ) from None
    try:
        table = pyarrow.parquet.ParquetFile(path)
    except (OSError, pyarrow.ArrowException) as error:
        raise DataFileError(f"{path} cannot be read: {error}") from None
    read = 0

    def rows() -> Rows:
        nonlocal read
        for batch in table.iter_batches(batch_size=256):
            for value in batch.to_pylist():
                read += 1
                yield Row(read, value)

    return _whole(rows()), lambda: read / max(1, table.metadata.num_rows)


_READERS: dict[str, Callable[[BufferedIOBase], Rows]] = {
    "jsonl": _json_lines,
    "ndjson": _json_lines,
    "json": _json,
    "txt": lambda file: _by_line(file, lambda line: line.decode().rstrip("\r\n")),
    "csv": _csv,
}
