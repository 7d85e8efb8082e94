"""Ends a command that waits on after its training was stopped.

The stop ends one process. Another one of the command may wait for it in a way that its end does not
end: for a message, or for a thread that the stop has ended. A process that saves, evaluates or
starts the next training uses a processor or files, so nothing is ended then.
"""

from __future__ import annotations

import json
import os
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

from oomdoctor.commands.run.process.guard import end_processes, processes_of

PATIENCE_S = 60.0
_LOOK_S = 5.0
_BUSY = 0.05  # of a core; the services of Ray take a hundredth each while they wait
_BUSY_BYTES = 1 << 20  # a second, read and written


@dataclass(slots=True)
class Waiting:
    """How long the command had waited after the stop when it was ended; None if it was not."""

    waited_s: float | None = None


@contextmanager
def ended_if_it_waits(
    folder: Path, patience_s: float = PATIENCE_S, look_s: float = _LOOK_S
) -> Iterator[Waiting]:
    """While the block runs, end the processes of a session once they wait so long after a stop."""
    waiting, over = Waiting(), threading.Event()

    def watch() -> None:
        before: dict[int, tuple[float, int]] = {}
        idle_since = looked = time.monotonic()
        while not over.wait(look_s):
            now = time.monotonic()
            used, passed = _used(folder), now - looked
            busy = any(
                seconds - before.get(pid, (0.0, 0))[0] > _BUSY * passed
                or moved - before.get(pid, (0.0, 0))[1] > _BUSY_BYTES * passed
                for pid, (seconds, moved) in used.items()
            )
            before, looked = used, now
            if busy or not _was_stopped(folder):
                idle_since = now
            elif now - idle_since >= patience_s:
                waiting.waited_s = now - idle_since
                end_processes(folder)
                return

    thread = threading.Thread(target=watch, daemon=True)
    thread.start()
    try:
        yield waiting
    finally:
        over.set()
        thread.join()


def _was_stopped(folder: Path) -> bool:
    """Whether a process has said that its training was stopped; not one that a person types to."""
    for path in folder.glob("process-*.json"):
        with suppress(OSError, ValueError):
            record = json.loads(path.read_text(encoding="utf-8"))
            if record["stopped"] and not record.get("waits_for_a_person"):
                return True
    return False


def _used(folder: Path) -> dict[int, tuple[float, int]]:
    """The processor time of each process of a session, and the bytes that it read and wrote."""
    ticks = os.sysconf("SC_CLK_TCK")
    used = {}
    for pid in processes_of(folder):
        with suppress(OSError, ValueError, IndexError):
            fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
            moved = Path(f"/proc/{pid}/io").read_text().split()
            used[pid] = (int(fields[11]) + int(fields[12])) / ticks, int(moved[1]) + int(moved[3])
    return used
