"""What the FILE arguments of `explain` name: files, standard input and Slurm jobs, and their lines.

What cannot be read costs only itself where there is more to read; the caller decides.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from oomdoctor.cli.streams import output
from oomdoctor.errors import OomDoctorError, usage_error

if TYPE_CHECKING:
    from oomdoctor.explain.reading.clean import Line

STDIN = "-"
_LARGE = 256 * 1024**2  # bytes of a log that takes a moment to read
_HEAD = 4096  # bytes that tell a text from another file
_PASTE = (
    "paste the traceback or the log here, then press Ctrl-D on an empty line\n"
    "(or give a file: oomdoctor explain trace.txt)"
)


@dataclass(frozen=True, slots=True)
class Source:
    """A log under the name it has in the answer.

    `paths` are read one after the other, STDIN among them; `tail` are lines that Slurm says of the
    run; `notes` are for people.
    """

    name: str
    paths: tuple[str, ...]
    tail: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()


def missing(name: str) -> str | None:
    """Why a name cannot be anything to read; None where it can, as far as its look tells."""
    if name == STDIN or os.path.lexists(name):
        return None
    from oomdoctor.system.slurm.jobs import is_job_id

    if is_job_id(name):
        return None
    return "there is no such file"


def named(name: str, *, quiet: bool) -> list[Source]:
    """The sources behind one argument: several for an array of Slurm jobs.

    Raises:
        OomDoctorError: there is no such job, or nothing of it can be read.
    """
    if name == STDIN or os.path.lexists(name):
        return [Source(name, (name,))]
    from oomdoctor.system.slurm.jobs import find_jobs

    if not quiet:
        output.say(f"asking Slurm about job {name}")
    return [
        Source(job.id, tuple(map(str, job.files)), job.lines, job.notes) for job in find_jobs(name)
    ]


def lines_of(source: Source, notes: list[str], *, quiet: bool) -> Iterator[Line]:
    """The lines of a source that matter, numbered through all its texts.

    A text that breaks off in the middle gives what stands before, and a note.

    Raises:
        OomDoctorError: a text cannot be read at all.
    """
    from oomdoctor.explain.reading.clean import Line
    from oomdoctor.explain.reading.stream import lines

    offset = number = 0
    for path in source.paths:
        _announce(path, quiet=quiet)
        for line in lines(_watched(path, notes)):
            number = offset + line.number
            yield Line(number, line.text)
        offset = number
    for text in source.tail:
        number += 1
        yield Line(number, text)


def _watched(path: str, notes: list[str]) -> Iterator[bytes]:
    """The chunks of a text; a note where it breaks off, and where its beginning is no text."""
    from oomdoctor.system.logs import looks_binary, read_chunks

    head = b""
    try:
        for chunk in read_chunks(None if path == STDIN else path):
            head += chunk[: max(0, _HEAD - len(head))]
            yield chunk
    except OomDoctorError as error:
        if not head:
            raise
        notes.append(f"{error.message}; what stands before was read")
    if looks_binary(head):
        notes.append(f"{path} looks like a binary file; a text was expected")
    if path == STDIN and sys.stdin.isatty():
        output.say("")  # the answer stands apart from what was pasted


def _announce(path: str, *, quiet: bool) -> None:
    """Say what is waited for: a paste always, a large file or a named pipe unless `quiet`."""
    if path == STDIN:
        if sys.stdin is None:
            raise usage_error("no_input", "standard input is closed", "give a file")
        if sys.stdin.isatty():
            output.say(_PASTE)
        return
    if quiet:
        return
    try:
        file = Path(path)
        if file.is_fifo() and not path.startswith("/dev/fd/"):  # <(command) has its writer
            output.say(f"reading the pipe {path} until its writer ends")
        elif file.is_file() and file.stat().st_size > _LARGE:
            output.say(f"reading {path}")
    except OSError:
        return  # reading it will tell
