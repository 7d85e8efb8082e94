"""Open the file of a snapshot."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from oomdoctor.errors import OomDoctorError, usage_error
from oomdoctor.snapshot.reading.events import Traces
from oomdoctor.snapshot.reading.instructions import PickleError
from oomdoctor.snapshot.reading.plain_pickle import load
from oomdoctor.snapshot.reading.snapshot import Snapshot, snapshot_of

_DUMP = 'write one with torch.cuda.memory._dump_snapshot("memory_snapshot.pickle")'


def read_snapshot(path: Path, progress: Callable[[float], None] | None = None) -> Snapshot:
    """The snapshot in a file; `progress` gets the share that was read, now and then.

    Nothing in the file is run.

    Raises:
        OomDoctorError: it cannot be read, or is no snapshot (exit 2).
    """
    traces = Traces()
    try:
        return snapshot_of(load(path, traces, progress), traces.stacks)
    except OSError as error:
        raise _unreadable(path, error.strerror or str(error)) from None
    except PickleError as error:
        raise _unreadable(path, _kind(path) or str(error)) from None


def _unreadable(path: Path, why: str) -> OomDoctorError:
    return usage_error("not_a_snapshot", f"cannot read {path} as a memory snapshot: {why}", _DUMP)


def _kind(path: Path) -> str | None:
    """What a file is that was taken for a snapshot by mistake, by its first bytes."""
    with path.open("rb") as file:
        head = file.read(8)
    if head.startswith(b"PK"):
        return "it is a zip archive, as torch.save writes"
    if head.startswith(b"\x1f\x8b"):
        return "it is compressed; unpack it with gunzip"
    if head[:1] in (b"{", b"[", b"<"):
        return "it is a text"
    return None
