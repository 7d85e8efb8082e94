"""The FILE arguments of `explain` as sources (files, standard input, Slurm jobs), and their lines.

A source that cannot be read raises; the caller decides whether to continue with the others.
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
    from oomdoctor.explain.reading.lines.clean import Line
    from oomdoctor.system.slurm.accounts import JobEnd

STDIN = "-"
_LARGE = 256 * 1024**2  # bytes; reading a larger log takes a noticeable time
_HEAD = 4096  # bytes; enough to recognise a binary file
_PASTE = (
    "paste the traceback or the log here, then press Ctrl-D on an empty line\n"
    "(or pass a file: oomdoctor explain trace.txt)"
)


@dataclass(frozen=True, slots=True)
class Source:
    """A log, under the name that the answer gives it.

    `paths` are read one after the other and may include STDIN. `tail` holds Slurm's own lines about
    the run, `notes` are shown to the user. `end` is what to say if the log shows no failure.
    """

    name: str
    paths: tuple[str, ...]
    tail: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()
    end: JobEnd | None = None


def missing(name: str) -> str | None:
    """Why nothing can be read under this name; None if it is a file or looks like a job id."""
    if name == STDIN or os.path.lexists(name):
        return None
    from oomdoctor.system.slurm.jobs import is_job_id

    if is_job_id(name):
        return None
    return "no such file"


def named(name: str, *, quiet: bool) -> list[Source]:
    """The sources of one argument; an array of Slurm jobs has several.

    Raises:
        OomDoctorError: there is no such job, or none of its output can be read.
    """
    if name == STDIN or os.path.lexists(name):
        return [Source(name, (name,))]
    from oomdoctor.system.slurm.jobs import find_jobs

    if not quiet:
        output.say(f"asking Slurm about job {name}")
    return [
        Source(job.id, tuple(map(str, job.files)), job.lines, job.notes, job.end)
        for job in find_jobs(name)
    ]


def lines_of(source: Source, notes: list[str], *, quiet: bool) -> Iterator[Line]:
    """The relevant lines of a source, numbered across all its files.

    If reading fails partway through a file, the lines before that are kept and a note is added.

    Raises:
        OomDoctorError: a file cannot be read at all.
    """
    from oomdoctor.explain.reading.lines.clean import Line
    from oomdoctor.explain.reading.lines.stream import lines

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
    """The chunks of a file; adds a note if reading fails partway or the file looks binary."""
    from oomdoctor.system.logs import looks_binary, read_chunks

    head = b""
    try:
        for chunk in read_chunks(None if path == STDIN else path):
            head += chunk[: max(0, _HEAD - len(head))]
            yield chunk
    except OomDoctorError as error:
        if not head:
            raise
        notes.append(f"{error.message}; only the part before that was read")
    if looks_binary(head):
        notes.append(f"{path} looks like a binary file, not a log")
    if path == STDIN and sys.stdin.isatty():
        output.say("")  # a blank line between the pasted text and the answer


def _announce(path: str, *, quiet: bool) -> None:
    """Say what we wait for: a paste, or (unless `quiet`) a large file or a named pipe."""
    if path == STDIN:
        if sys.stdin is None:
            raise usage_error("no_input", "standard input is closed", "oomdoctor explain FILE")
        if sys.stdin.isatty():
            output.say(_PASTE)
        return
    if quiet:
        return
    try:
        file = Path(path)
        if file.is_fifo() and not path.startswith("/dev/fd/"):  # <(command) needs no notice
            output.say(f"reading the pipe {path} until its writer closes it")
        elif file.is_file() and file.stat().st_size > _LARGE:
            output.say(f"reading {path}")
    except OSError:
        return  # reading it reports the error
