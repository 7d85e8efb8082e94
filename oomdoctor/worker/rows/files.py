"""The rows of a data file one after another, in memory that does not grow with the file.

JSON lines, a JSON array, CSV with a header, lines of text, all of them also gzipped, and parquet
where pyarrow is installed. What cannot be read comes as a row with a fault, never as a gap.
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
from pathlib import Path
from typing import IO, Any

LONGEST_LINE_BYTES = 64 * 1024**2  # a longer one is no row that anybody trains on
_CHUNK_BYTES = 1024**2
_FIRST_BYTES = 4096  # of which the first that is no space tells an array from lines
# Elsewhere than in lines, bytes that are not UTF-8 become surrogates, which are found where the
# text of the row is looked at.
_ESCAPED = "surrogateescape"
_NOT_TEXT = "is not text in UTF-8"
_BROKEN_OFF = (EOFError, gzip.BadGzipFile, zlib.error, OSError)


class DataFileError(Exception):
    """The file cannot be read at all; the text says why and what to do."""


@dataclass(frozen=True, slots=True)
class Row:
    """A row by its number, from 1; `value` is a dict or a text, None where `fault` says why."""

    number: int
    value: Any
    fault: str | None = None


Rows = Iterator[Row]


@contextmanager
def open_rows(path: Path) -> Iterator[tuple[Rows, Callable[[], float]]]:
    """The rows of a file, and a function that tells the share of the file read so far.

    Numbers are those of the lines in files of lines, else of the rows without the header.

    Raises:
        DataFileError: the file is missing, of an unknown kind, or its reader is.
    """
    kind = path.name.lower().removesuffix(".gz").rpartition(".")[2]
    if kind == "parquet":
        yield _parquet(path)
        return
    if kind not in _READERS:
        known = ", ".join(f".{name}" for name in (*_READERS, "parquet"))
        raise DataFileError(f"{path} is none of {known}; .gz may follow")
    try:
        raw = path.open("rb")
    except OSError as error:
        raise DataFileError(f"{path} cannot be read: {error.strerror}") from None
    with raw:
        size = max(1, path.stat().st_size)
        unpacked: Any = gzip.GzipFile(fileobj=raw) if path.name.lower().endswith(".gz") else raw
        yield _whole(_READERS[kind](unpacked)), lambda: raw.tell() / size


def _whole(rows: Rows) -> Rows:
    """The rows up to where the file breaks off, and then a row that says so."""
    number = 0
    try:
        for row in rows:
            number = row.number
            yield row
    except _BROKEN_OFF as error:
        yield Row(number + 1, None, f"the file cannot be read from here on: {error}")


def _lines(file: IO[bytes]) -> Iterator[tuple[int, bytes | None]]:
    """The lines that are not blank, with their numbers; None for one that is too long."""
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


def _json_lines(file: IO[bytes]) -> Rows:
    for number, line in _lines(file):
        if line is None:
            yield _too_long(number)
            continue
        try:
            yield Row(number, json.loads(line))
        except (ValueError, RecursionError) as error:
            told = _NOT_TEXT if isinstance(error, UnicodeDecodeError) else f"is no JSON: {error}"
            yield Row(number, None, told)


def _text_lines(file: IO[bytes]) -> Rows:
    for number, line in _lines(file):
        if line is None:
            yield _too_long(number)
            continue
        try:
            yield Row(number, line.decode().rstrip("\r\n"))
        except UnicodeDecodeError:
            yield Row(number, None, _NOT_TEXT)


def _csv(file: IO[bytes]) -> Rows:
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
            yield Row(number, None, f"is no CSV: {error}")


def _json(file: IO[bytes]) -> Rows:
    """A JSON array, or JSON lines under the name .json, told apart by the first character."""
    start = file.read(_FIRST_BYTES).removeprefix(codecs.BOM_UTF8).lstrip()
    file.seek(0)
    return _json_array(file) if start.startswith(b"[") else _json_lines(file)


def _json_array(file: IO[bytes]) -> Rows:
    """The elements of an array; behind a fault there is no telling where the next one begins."""
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
                yield Row(number + 1, None, f"is no JSON, nor is what follows: {error}")
                return
            chunk = file.read(size)
            size *= 2  # so that a long element is not decoded anew for every small piece
            ended = not chunk
            pending, at = pending[at:] + decoder.decode(chunk, final=ended), 0
            continue
        number, size = number + 1, _CHUNK_BYTES
        yield Row(number, value)


def _skip(text: str, at: int) -> int:
    """Past the space and the comma before an element."""
    while at < len(text) and (text[at].isspace() or text[at] == ","):
        at += 1
    return at


def _parquet(path: Path) -> tuple[Rows, Callable[[], float]]:
    try:
        import pyarrow.parquet
    except ImportError:
        raise DataFileError(
            f"{path} needs pyarrow, which this interpreter lacks: install it, or save JSON lines"
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


def _too_long(number: int) -> Row:
    return Row(number, None, f"is longer than {LONGEST_LINE_BYTES // 1024**2} MiB")


_READERS: dict[str, Callable[[IO[bytes]], Rows]] = {
    "jsonl": _json_lines,
    "ndjson": _json_lines,
    "json": _json,
    "txt": _text_lines,
    "csv": _csv,
}
