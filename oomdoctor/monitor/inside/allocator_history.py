"""The allocator's own trace of a device: peaks by step, a curve, and the events for a replay.

torch records each allocation with its Python stack. The trace is read after each optimizer step
and then cleared, so that it stays small. Blocks are counted in units of 512 bytes, as torch rounds
them; the part of a block that torch did not split off is not in the trace.
"""

from __future__ import annotations

import os
import sys
import time
from array import array
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import wraps
from pathlib import Path
from types import ModuleType
from typing import Any

from oomdoctor.analysis.allocator.sizes import round_size, segment_size
from oomdoctor.system.store.record_files import whole_or_not

MOST_ENTRIES = 400_000  # of the trace between two steps
_MOST_KEPT = 100_000  # of all traces, before they are cleared even if they are wanted whole
_MOST_EVENTS = 4_000_000  # for the replay, in all
_MOST_POINTS = 400  # of the curve before it is thinned; an even number

_ALWAYS = 10  # snapshots of one process that are written whatever they cost
_SHARE = 20  # after that, the script goes on for so many times as long as they took


@dataclass
class Peak:
    """The moment of most memory: when (microseconds since 1970), how much, and the stack then."""

    allocated_bytes: int = 0
    at_us: int = 0
    frames: list[dict[str, Any]] = field(default_factory=list)


@dataclass(frozen=True)
class Request:
    """A request in the trace: what torch asks the driver for, what was allocated and reserved
    before it, when, and the stack."""

    requested_bytes: int
    allocated_bytes: int
    reserved_bytes: int
    at_us: int
    frames: list[dict[str, Any]]


@dataclass
class Curve:
    """Memory over time: of each stretch of events the moment with most memory, the peak kept."""

    points: list[tuple[int, int, int, int]] = field(default_factory=list)
    stride: int = 1
    seen: int = 0

    def add(self, at_us: int, step: int, allocated: int, reserved: int) -> None:
        """Add the memory after an event."""
        point = (at_us, step, allocated, reserved)
        if self.seen % self.stride == 0:
            self.points.append(point)
            if len(self.points) >= _MOST_POINTS:
                pairs = zip(self.points[::2], self.points[1::2], strict=True)
                self.points = [max(pair, key=lambda moment: moment[2]) for pair in pairs]
                self.stride *= 2
        elif allocated > self.points[-1][2]:
            self.points[-1] = point
        self.seen += 1


@dataclass
class History:
    """What the trace of one device has shown so far. Sizes are in bytes."""

    device: int
    allocated: int = 0
    reserved: int = 0
    peak: Peak = field(default_factory=Peak)
    step_allocated: int = 0
    step_reserved: int = 0
    is_whole: bool = True
    request: Request | None = None
    """The one that `read` was asked for."""
    curve: Curve = field(default_factory=Curve)
    blocks: array[int] = field(default_factory=lambda: array("q"))
    sizes: array[int] = field(default_factory=lambda: array("q"))
    streams: array[int] = field(default_factory=lambda: array("q"))
    _live: dict[int, tuple[int, int, int]] = field(default_factory=dict)
    _born: int = 0

    def begin_step(self) -> None:
        """Begin a step: its peaks start at what is in use now."""
        self.step_allocated, self.step_reserved = self.allocated, self.reserved

    def read(
        self, entries: list[dict[str, Any]], step: int, wanted: dict[str, int] | None = None
    ) -> None:
        """Take what happened since the last call into account.

        `wanted` has the address of a new segment and when it was made: the request for it is kept.
        """
        if len(entries) >= MOST_ENTRIES:
            self.is_whole = False
        request_at = None if wanted is None or self.request else _request_for(entries, wanted)
        for number, entry in enumerate(entries):
            action, size = entry["action"], entry["size"]
            if number == request_at:
                made = entries[number - 1]["size"]
                self.request = Request(
                    *(segment_size(round_size(size)), self.allocated, self.reserved - made),
                    *(entry["time_us"], entry["frames"]),
                )
            if action == "alloc":
                self._allocate(entry, size, step)
            elif action == "free_completed":
                self._free(entry, step)
            elif action in ("segment_alloc", "segment_map"):
                self.reserved += size
                self.step_reserved = max(self.step_reserved, self.reserved)
            elif action in ("segment_free", "segment_unmap"):
                self.reserved -= size

    def correct(self, allocated: int, reserved: int) -> None:
        """Take over what torch itself counts now."""
        self.allocated, self.reserved = allocated, reserved
        self.step_allocated = max(self.step_allocated, allocated)
        self.step_reserved = max(self.step_reserved, reserved)

    def _allocate(self, entry: dict[str, Any], size: int, step: int) -> None:
        rounded = (size + 511) & -512
        self._born += 1
        self._live[entry["addr"]] = (self._born, rounded, entry["stream"])
        self.allocated += rounded
        if self.allocated > self.step_allocated:
            self.step_allocated = self.allocated
        if self.allocated > self.peak.allocated_bytes:
            self.peak = Peak(self.allocated, entry["time_us"], entry["frames"])
        self._note(self._born, size, entry["stream"])
        self.curve.add(entry["time_us"], step, self.allocated, self.reserved)

    def _free(self, entry: dict[str, Any], step: int) -> None:
        born = self._live.pop(entry["addr"], None)
        if born is not None:
            number, rounded, stream = born
            self.allocated -= rounded
            self._note(number, -rounded, stream)
            self.curve.add(entry["time_us"], step, self.allocated, self.reserved)

    def _note(self, block: int, size: int, stream: int) -> None:
        if len(self.blocks) < _MOST_EVENTS:
            self.blocks.append(block)
            self.sizes.append(size)
            self.streams.append(stream)
        else:
            self.is_whole = False


def _request_for(entries: list[dict[str, Any]], wanted: dict[str, int]) -> int | None:
    """The place of the request that made torch take a segment; None if it is not among these."""
    made = [
        number
        for number, entry in enumerate(entries[:-1])
        if entry["action"] in ("segment_alloc", "segment_map")
        and 0 <= wanted["address"] - entry["addr"] < entry["size"]
        and entries[number + 1]["action"] == "alloc"
    ]
    times = {number: abs(entries[number]["time_us"] - wanted["at_us"]) for number in made}
    return 1 + min(made, key=times.__getitem__) if made else None


# Set once the script records its own history: then nothing is cleared, and this many entries of
# each device have been read.
_read_before: dict[int, int] | None = None
_kept: dict[int, int] = {}  # entries of each device that were read and not cleared


def start(most_entries: int = MOST_ENTRIES) -> None:
    """Let torch record allocations from now on; what it recorded before is forgotten.

    Of more than `most_entries` the last ones are kept.
    """
    import torch

    if _read_before is None:
        torch.cuda.memory._record_memory_history(None)
        torch.cuda.memory._record_memory_history(
            "all", context="alloc", stacks="python", max_entries=most_entries
        )


def leave_to_the_script() -> None:
    """Notice when the script records its own history, whose entries are then only read."""
    import torch

    record = torch.cuda.memory._record_memory_history

    @wraps(record)
    def noticed(enabled: Any = "all", *args: Any, **kwargs: Any) -> Any:
        global _read_before
        if sys._getframe(1).f_globals.get("__name__") != __name__:
            _read_before = {} if enabled == "all" else None
        return record(enabled, *args, **kwargs)

    torch.cuda.memory._record_memory_history = noticed


@contextmanager
def _without_compiler() -> Iterator[None]:
    """Keep torch from importing its compiler to ask for the lines of code that it compiled.

    That takes seconds, which a process that is asked to end may not have.
    """
    import torch

    if "torch._inductor" in sys.modules:
        yield
        return
    stand_in = ModuleType("torch._inductor")
    torch._inductor = stand_in
    try:
        yield
    finally:
        if vars(torch).get("_inductor") is stand_in:
            del torch._inductor


def read_all(
    histories: dict[int, History], step: int, wanted: dict[str, int] | None = None
) -> None:
    """Read the traces of all devices that were used, and start new ones.

    With `wanted`, a request that is looked for, the traces go on as long as they are short.
    """
    import torch

    with _without_compiler():
        traces = torch.cuda.memory._snapshot()["device_traces"]
    after = dict(_kept)
    if wanted is None or sum(map(len, traces)) > _MOST_KEPT:
        start()
        _kept.clear()
    else:
        _kept.update({device: len(entries) for device, entries in enumerate(traces)})
    for device, entries in enumerate(traces):
        if _read_before is not None:
            entries, _read_before[device] = entries[_read_before.get(device, 0) :], len(entries)
        else:
            entries = entries[after.get(device, 0) :]
        if device not in histories and any(entry["action"] != "snapshot" for entry in entries):
            histories[device] = History(device)
        if device in histories:
            of_device = wanted is not None and wanted["device"] == device
            histories[device].read(entries, step, wanted if of_device else None)
            histories[device].correct(
                torch.cuda.memory_allocated(device), torch.cuda.memory_reserved(device)
            )


class Snapshots:
    """Writes one file for each device of this process; a later failure replaces an earlier one.

    A script may catch the error and try again, many times.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._written = 0
        self._took_s = self._ended_at = 0.0

    def write(self, device: int) -> str | None:
        """The name of the file with all that torch knows now; None if it is too soon.

        Raises:
            OSError: the disk is full.
        """
        import torch

        began = time.monotonic()
        if self._written >= _ALWAYS and began - self._ended_at < _SHARE * self._took_s:
            return None
        name = f"snapshot-{os.getpid()}-{device}.pickle"
        with whole_or_not(self._folder / name) as beside, _without_compiler():
            torch.cuda.memory._dump_snapshot(str(beside))
        self._written += 1
        self._ended_at = time.monotonic()
        self._took_s = self._ended_at - began
        return name
