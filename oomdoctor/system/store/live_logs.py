"""Where live logs are, what is in them, and whose they are.

The monitor writes them, `watch` and `run` read them.

A log is `live/PID.jsonl` in the state folder. Computers may share that folder, and containers have
the same process ids, so a file that belongs to another host gives way to `PID-HOST.jsonl`.
"""

from __future__ import annotations

import json
import os
import platform
import time
from collections import defaultdict
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any, TextIO, TypeVar

from oomdoctor.records.report.watch import LIVE_SCHEMA, LiveEvent, LiveGpu, LiveHeader, LiveStep
from oomdoctor.system.environment import state_dir
from oomdoctor.system.regular_files import latest_first, opened

_KEPT_S = 7 * 24 * 3600  # a log of a process that has ended is removed after a week
_LONGEST_HEADER = 1 << 20  # characters
T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class LiveRecord:
    """A live log as far as it was written. `written_at` is when, in seconds since 1970."""

    path: Path
    header: LiveHeader
    steps: tuple[LiveStep, ...]
    events: tuple[LiveEvent, ...]
    written_at: float

    @property
    def has_ended(self) -> bool:
        """Whether the process has ended, by its log or because there is no such process here."""
        if any(event.event == "end" for event in self.events):
            return True
        return self.header.host == platform.node() and not is_alive(self.header.pid)


def live_folder() -> Path:
    """The folder of the live logs; it may not exist yet."""
    return state_dir() / "live"


def new_log_file() -> Path:
    """An empty file for the log of this process, which only its user can read.

    It replaces what an earlier process with the same id left. Old logs are removed.

    Raises:
        OSError: the folder cannot be written.
    """
    folder = live_folder()
    folder.mkdir(parents=True, exist_ok=True)
    limit = time.time() - _KEPT_S
    for path in folder.glob("*.jsonl"):
        with suppress(OSError):
            if path.stat().st_mtime < limit and not _is_in_use(path):
                path.unlink()
    host, pid = platform.node(), os.getpid()
    for name in (f"{pid}.jsonl", f"{pid}-{host}.jsonl".replace("/", "-")):
        path = folder / name
        header = read_header(path)
        if header is not None and header.host != host:
            continue
        path.unlink(missing_ok=True)
        os.close(os.open(path, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o600))
        return path
    raise FileExistsError(f"the live log of process {pid} belongs to another host")


def log_files() -> list[Path]:
    """The live logs, the one that was written last first."""
    return latest_first(live_folder().glob("*.jsonl"))


def read_header(path: Path) -> LiveHeader | None:
    """The header of a live log; None if the file is missing, half-written or something else."""
    try:
        with _opened(path) as file:
            return _header(_object(file.readline(_LONGEST_HEADER)))
    except OSError:
        return None


def read_log(path: Path) -> LiveRecord | None:
    """A live log; None if the file is missing or is not one. A half-written line is left out."""
    try:
        written_at = path.stat().st_mtime
        with _opened(path) as file:
            header = _header(_object(file.readline(_LONGEST_HEADER)))
            if header is None:
                return None
            rows = list(map(_object, file))
    except OSError:
        return None
    steps = tuple(_rows(LiveStep, "allocated_bytes", rows))
    return LiveRecord(path, header, steps, tuple(_rows(LiveEvent, "event", rows)), written_at)


def _opened(path: Path) -> TextIO:
    return os.fdopen(opened(path), encoding="utf-8", errors="replace")


def is_alive(pid: int) -> bool:
    """Whether there is a process with this id on this computer."""
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except (OSError, OverflowError):
        return True
    return True


def family(pid: int) -> frozenset[int]:
    """A process and all its descendants; empty if there is no such process."""
    children: dict[int, list[int]] = defaultdict(list)
    for folder in Path("/proc").glob("[0-9]*"):
        parent = _parent(folder)
        if parent is not None:
            children[parent].append(int(folder.name))
    if not Path("/proc", str(pid)).is_dir():
        return frozenset()
    members, waiting = set(), [pid]
    while waiting:
        process = waiting.pop()
        if process not in members:
            members.add(process)
            waiting += children[process]
    return frozenset(members)


def _parent(folder: Path) -> int | None:
    try:
        # The name of the command is in brackets, and may hold anything.
        fields = (folder / "stat").read_text(errors="replace").rpartition(")")[2].split()
        return int(fields[1])
    except (OSError, ValueError, IndexError):
        return None


def _is_in_use(path: Path) -> bool:
    """Whether a process of this host still writes it: it may have been suspended."""
    header = read_header(path)
    return header is not None and header.host == platform.node() and is_alive(header.pid)


def _object(line: str) -> dict[str, Any]:
    try:
        entry = json.loads(line)
    except ValueError:
        return {}
    return entry if isinstance(entry, dict) else {}


def _header(entry: dict[str, Any]) -> LiveHeader | None:
    if entry.get("schema") != LIVE_SCHEMA:
        return None
    with suppress(TypeError):
        command = tuple(map(str, entry.get("command") or ()))
        gpus = tuple(LiveGpu(**gpu) for gpu in entry.get("gpus") or ())
        return _record(LiveHeader, entry | {"command": command, "gpus": gpus})
    return None


def _rows(kind: type[T], needed: str, rows: list[dict[str, Any]]) -> Iterator[T]:
    """The rows of a kind; newer versions may know more keys."""
    for row in rows:
        if needed in row:
            with suppress(TypeError):
                yield _record(kind, row)


def _record(kind: type[T], row: dict[str, Any]) -> T:
    data_class: Any = kind  # a dataclass
    return kind(
        **{field.name: row[field.name] for field in fields(data_class) if field.name in row}
    )
