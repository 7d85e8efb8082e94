"""Records as JSON files that appear whole or not at all: a temporary file is renamed."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from pathlib import Path
from typing import TypeVar

from oomdoctor.errors import machine_error
from oomdoctor.records import codec
from oomdoctor.system.regular_files import text_of

MOST_BYTES = 64 * 1024**2  # of a record
T = TypeVar("T")


def write_record(path: Path, record: object) -> None:
    """Write a record as JSON, whole or not at all.

    Raises:
        OomDoctorError: the disk is full or the folder cannot be written (exit 5).
    """
    text = codec.dumps(record)
    with writing(path), whole_or_not(path) as beside:
        beside.write_text(text, encoding="utf-8")


@contextlib.contextmanager
def whole_or_not(path: Path) -> Iterator[Path]:
    """A file to write, which replaces `path` at the end; nothing of it is left after an error."""
    beside = path.with_name(f".{path.name}.{os.getpid()}.{os.urandom(4).hex()}.tmp")
    try:
        yield beside
        beside.replace(path)
    finally:
        with contextlib.suppress(OSError):
            beside.unlink(missing_ok=True)


def read_record(kind: type[T], path: Path) -> T:
    """Read a record from a JSON file.

    Raises:
        OomDoctorError: the file is missing, damaged or from another version (exit 5).
    """
    try:
        return codec.loads(kind, text_of(path, MOST_BYTES))
    except OSError as error:
        reason = error.strerror or str(error)
    except (ValueError, RecursionError) as error:
        reason = str(error)
    raise machine_error(
        "unreadable_run",
        f"cannot read {path.parent.name}/{path.name}: {reason}",
        f"start a new run; the folder {path.parent} was not changed",
    )


@contextlib.contextmanager
def writing(path: Path) -> Iterator[None]:
    """Turn a failed write in the block into a machine error with a hint (exit 5)."""
    try:
        yield
    except OSError as error:
        name = error.filename2 or error.filename or path
        raise machine_error(
            "state_unwritable",
            f"cannot write the run to {name}: {error.strerror or error}",
            "free some space, or set XDG_STATE_HOME to a writable folder",
        ) from error
