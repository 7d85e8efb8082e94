"""What is seen from outside while a command runs: host memory, and the GPUs when memory runs out.

A thread looks a few times a second whether a process has noted that memory ran out, and asks the
driver then, while that process still holds its memory.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path

from oomdoctor.errors import OomDoctorError
from oomdoctor.records.inside.run import HostMemory
from oomdoctor.records.machine import Gpu
from oomdoctor.system.machine.memory import available_memory, oom_kills_here, total_memory

_LOOK_S = 0.2
_HOST_EVERY = 5  # looks from one sample of the host's memory to the next
_SHM = "/dev/shm"


@dataclass(slots=True)
class Samples:
    """What was seen. `gpus` is when memory ran out last, else at the start."""

    gpus: tuple[Gpu, ...] = ()
    host: HostMemory | None = None
    _seen: dict[str, int] = field(default_factory=dict)
    _kills_before: int = 0

    def begin(self) -> None:
        """Take the first sample of the host."""
        self._kills_before = oom_kills_here()
        self.look_at_host()

    def look_at_host(self) -> None:
        """Take a sample of the host; the least memory so far is kept."""
        with suppress(OomDoctorError, OSError):
            available, before = available_memory(), self.host
            total, free = shared_memory()
            self.host = HostMemory(
                total_bytes=total_memory(),
                least_available_bytes=_least(
                    available, None if before is None else before.least_available_bytes
                ),
                kernel_kills=max(0, oom_kills_here() - self._kills_before),
                shm_total_bytes=total,
                shm_least_free_bytes=_least(
                    free, None if before is None else before.shm_least_free_bytes
                ),
            )

    def has_failed_again(self, folder: Path) -> bool:
        """Whether a process has run out of memory since the last call."""
        again = False
        for path in folder.glob("oom-*"):
            with suppress(OSError):
                at = path.stat().st_mtime_ns
                again |= self._seen.get(path.name) != at
                self._seen[path.name] = at
        return again


def shared_memory(place: str = _SHM) -> tuple[int | None, int | None]:
    """The size of /dev/shm and what is free of it, in bytes; None where there is none."""
    try:
        found = os.statvfs(place)
    except OSError:
        return None, None
    return found.f_blocks * found.f_frsize, found.f_bavail * found.f_frsize


@contextmanager
def sampled(
    folder: Path, gpus: tuple[Gpu, ...], list_gpus: Callable[[], tuple[Gpu, ...]]
) -> Iterator[Samples]:
    """Take samples while the block runs; `list_gpus` asks the driver."""
    samples, ended = Samples(gpus), threading.Event()
    samples.begin()

    def watch() -> None:
        looks = 0
        while not ended.wait(_LOOK_S):
            looks += 1
            if samples.has_failed_again(folder):
                samples.gpus = list_gpus() or samples.gpus
            if looks % _HOST_EVERY == 0:
                samples.look_at_host()

    thread = threading.Thread(target=watch, daemon=True)
    thread.start()
    try:
        yield samples
    finally:
        ended.set()
        thread.join()
        samples.look_at_host()


def _least(now: int | None, before: int | None) -> int | None:
    return now if before is None or now is None else min(now, before)
