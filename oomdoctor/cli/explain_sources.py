"""The files that a command line names: logs and Slurm jobs of `explain`, and memory snapshots.

A source that cannot be read raises; the caller decides whether to continue with the others.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from oomdoctor.cli.streams import output
from oomdoctor.errors import OomDoctorError, usage_error

if TYPE_CHECKING:
    from oomdoctor.explain.evidence import SnapshotEvidence
    from oomdoctor.explain.reading.lines.clean import Line
    from oomdoctor.snapshot.changes import Room
    from oomdoctor.snapshot.history import History
    from oomdoctor.snapshot.reading.snapshot import Snapshot
    from oomdoctor.system.slurm.jobs import LogSource


_LARGE_SNAPSHOT = 64 * 1024**2  # bytes; reading more takes a noticeable time


def read_file(file: Path, *, quiet: bool) -> Snapshot:
    """Read a snapshot; a large one says on stderr how far it is.

    Raises:
        OomDoctorError: it cannot be read, or is no snapshot.
    """
    from oomdoctor.snapshot.reading.snapshot import read_snapshot

    is_large = file.is_file() and file.stat().st_size > _LARGE_SNAPSHOT
    return read_snapshot(file, say_tenths(file.name) if is_large and not quiet else None)


def histories(snapshot: Snapshot) -> dict[int, History]:
    """The devices of a snapshot by their index."""
    from oomdoctor.snapshot.history import history_of

    return {device.index: history_of(snapshot, device) for device in snapshot.devices}


def say_tenths(name: str) -> Callable[[float], None]:
    """A function that says how much was read, a line for each tenth."""
    told = 0

    def say(share: float) -> None:
        nonlocal told
        if share * 10 >= told + 1:
            told = int(share * 10)
            output.say_progress(f"{name}: {told * 10}% read")

    return say


def failed_requests(file: Path, *, quiet: bool) -> tuple[SnapshotEvidence, ...]:
    """The requests that failed in a snapshot, and what was held then.

    Raises:
        OomDoctorError: it cannot be read, or is no snapshot.
    """
    from oomdoctor.explain.evidence import evidence_of
    from oomdoctor.snapshot.device_answer import device_of

    by_gpu = histories(read_file(file, quiet=quiet))
    return evidence_of(str(file), [device_of(history) for history in by_gpu.values()])


def rooms_named(names: Iterable[str]) -> list[Room]:
    """The cards or sizes of these names, with what torch can reserve there.

    Raises:
        OomDoctorError: a name is neither a card nor a size (exit 2).
    """
    try:
        return [_room(name) for name in names]
    except ValueError as error:
        raise usage_error("bad_option", f"--gpu: {error}", "oomdoctor gpus") from None


def all_rooms() -> list[Room]:
    """All known cards of NVIDIA."""
    from oomdoctor.system import catalogue

    return [_room(gpu.name) for gpu in catalogue.gpus() if gpu.vendor == "NVIDIA"]


def _room(name: str) -> Room:
    from oomdoctor.analysis.fit import USUAL_HEADROOM
    from oomdoctor.commands.devices.cards import card_named
    from oomdoctor.snapshot.changes import Room

    target = card_named(name, USUAL_HEADROOM).target()
    return Room(target.name, target.limit_bytes)


STDIN = "-"
_LARGE = 256 * 1024**2  # bytes; reading a larger log takes a noticeable time
_HEAD = 4096  # bytes; enough to recognise a binary file
_PASTE = (
    "paste the traceback or the log here, then press Ctrl-D on an empty line\n"
    "(or pass a file: oomdoctor explain trace.txt)"
)


def missing(name: str) -> str | None:
    """Why nothing can be read under this name; None if it is a file or looks like a job id."""
    if name == STDIN or os.path.lexists(name):
        return None
    from oomdoctor.system.slurm.jobs import is_job_id

    if is_job_id(name):
        return None
    return "no such file"


def named(name: str, *, quiet: bool) -> list[LogSource]:
    """The sources of one argument; an array of Slurm jobs has several.

    Raises:
        OomDoctorError: there is no such job, or none of its output can be read.
    """
    from oomdoctor.system.slurm.jobs import LogSource, find_jobs

    if name == STDIN or os.path.lexists(name):
        return [LogSource(name, (Path(name),))]
    if not quiet:
        output.say(f"asking Slurm about job {name}")
    return find_jobs(name)


def lines_of(source: LogSource, notes: list[str], *, quiet: bool) -> Iterator[Line]:
    """The relevant lines of a source, numbered across all its files.

    If reading fails partway through a file, the lines before that are kept and a note is added.

    Raises:
        OomDoctorError: a file cannot be read at all.
    """
    from oomdoctor.commands.explain.explained import numbered
    from oomdoctor.explain.reading.lines.stream import lines

    def told(path: str) -> Iterator[Line]:
        _announce(path, quiet=quiet)
        yield from lines(_watched(path, notes))

    return numbered(map(told, map(str, source.files)), source.lines)


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
