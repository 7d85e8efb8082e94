"""Writes allocations that were simulated or counted as a memory snapshot, as torch would.

The events go through the model of the caching allocator, so the segments are those that torch would
have. PyTorch's own viewer opens the file too.
"""

from __future__ import annotations

import pickle
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from oomdoctor.analysis.allocator.caching import CachingAllocator
from oomdoctor.analysis.allocator.records import Mark, OutOfDeviceMemory, Segment
from oomdoctor.analysis.allocator.settings import AllocatorSettings
from oomdoctor.records.report.run import Place

_PROTOCOL = 4  # that of torch
_STEP = "Optimizer.step#optimizer"
_FIRST_ADDRESS = 0x7F00_0000_0000

Range = tuple[int, int]  # first address, end


@dataclass(frozen=True, slots=True)
class Allocations:
    """A training as births `+(i + 1)` and deaths `-(i + 1)` of blocks, in order.

    `sizes` are in bytes; blocks of 0 bytes are not allocated. `marks` say where each phase begins,
    and `frames` gives the stack of a block that is born in a phase. The process may reserve
    `limit_bytes` at most; None is no limit. `written_by` says how the allocations are known.
    """

    events: Sequence[int]
    sizes: Sequence[int]
    marks: Sequence[Mark]
    frames: Callable[[int, str], tuple[Place, ...]]
    settings: AllocatorSettings
    written_by: str
    limit_bytes: int | None = None


def write_snapshot(made: Allocations, file: Path) -> None:
    """Write the snapshot; after a request that cannot be met there is nothing more in it.

    Raises:
        OSError: the file cannot be written.
    """
    with file.open("wb") as out:
        pickle.dump(_Trace(made).snapshot(), out, _PROTOCOL)


class _Trace:
    """Plays allocations through an allocator and notes what torch would."""

    def __init__(self, made: Allocations) -> None:
        self._made = made
        self._allocator = CachingAllocator(None, made.settings, limit_bytes=made.limit_bytes)
        self._events: list[dict[str, Any]] = []
        self._notes: list[dict[str, Any]] = []
        self._stacks: dict[tuple[Place, ...], list[dict[str, Any]]] = {}
        self._stack: list[dict[str, Any]] = []  # of the event that is played
        self._requested: dict[int, tuple[int, int, list[dict[str, Any]]]] = {}
        self._ranges: list[Range] = []  # what is reserved, as of the last event
        self._reserved = 0

    def snapshot(self) -> dict[str, Any]:
        """The whole snapshot, as `torch.cuda.memory._snapshot` gives it."""
        self._play()
        settings = self._made.settings
        conf = "expandable_segments:True" if settings.expandable_segments else ""
        return {
            "segments": [self._segment(segment) for segment in self._allocator.segments()],
            "device_traces": [self._events],
            "allocator_settings": {
                "PYTORCH_CUDA_ALLOC_CONF": conf,
                "expandable_segments": settings.expandable_segments,
                "written_by": self._made.written_by,
            },
            "external_annotations": self._notes,
        }

    def _play(self) -> None:
        made = self._made
        ends = [mark.event for mark in made.marks[1:]] + [len(made.events)]
        steps = [mark.name == "optimizer" for mark in made.marks]
        # Several in a row are one step.
        around = zip([False, *steps], steps, [*steps[1:], False], strict=False)
        for mark, end, (before, in_step, after) in zip(made.marks, ends, around, strict=True):
            if mark.empties:
                self._allocator.empty_cache()
                self._note_segments()
            self._annotate("START", when=in_step and not before)
            for event in made.events[mark.event : end]:
                block = abs(event) - 1
                if not made.sizes[block]:
                    continue
                if event < 0:
                    self._free(block)
                elif not self._allocate(block, mark.name):
                    return
            self._annotate("END", when=in_step and not after)

    def _allocate(self, block: int, phase: str) -> bool:
        """Whether the request was met."""
        size = self._made.sizes[block]
        self._stack = self._frames(self._made.frames(block, phase))
        try:
            self._allocator.allocate(block, size)
        except OutOfDeviceMemory as failure:
            self._note_segments()
            limit, record = self._made.limit_bytes or 0, failure.record
            free = max(0, limit - record.reserved_bytes)
            self._note("oom", size, device_free=free)
            return False
        self._note_segments()
        address = self._allocator.address_of(block)
        self._requested[address] = (block, size, self._stack)
        self._note("alloc", size, addr=_FIRST_ADDRESS + address)
        return True

    def _free(self, block: int) -> None:
        address = self._allocator.address_of(block)
        _, size, self._stack = self._requested.pop(address)
        self._allocator.free(block)
        for action in ("free_requested", "free_completed"):
            self._note(action, size, addr=_FIRST_ADDRESS + address)

    def _note_segments(self) -> None:
        """Note what was taken from the device or given back since the last event."""
        if self._allocator.reserved_bytes == self._reserved:
            return
        expandable = self._made.settings.expandable_segments
        more, less = (
            ("segment_map", "segment_unmap") if expandable else ("segment_alloc", "segment_free")
        )
        now = _ranges(self._allocator.segments())
        for action, ranges in (
            (less, _without(self._ranges, now)),
            (more, _without(now, self._ranges)),
        ):
            for start, end in ranges:
                self._note(action, end - start, addr=_FIRST_ADDRESS + start)
        self._ranges, self._reserved = now, self._allocator.reserved_bytes

    def _note(self, action: str, size: int, **more: int) -> None:
        self._events.append(
            {"action": action, **more, "size": size, "stream": 0}
            | {"time_us": len(self._events), "frames": self._stack}
        )

    def _annotate(self, stage: str, *, when: bool) -> None:
        if when:
            at = len(self._events)
            self._notes.append({"device": 0, "name": _STEP, "stage": stage, "time_us": at})

    def _frames(self, frames: tuple[Place, ...]) -> list[dict[str, Any]]:
        if frames not in self._stacks:
            self._stacks[frames] = [
                {"filename": frame.file, "line": frame.line, "name": frame.function}
                for frame in frames
            ]
        return self._stacks[frames]

    def _segment(self, segment: Segment) -> dict[str, Any]:
        first = segment.spans[0].address
        blocks = []
        for span in segment.spans:
            address = _FIRST_ADDRESS + span.address
            _, requested, stack = self._requested.get(span.address, (0, 0, []))
            state = "active_allocated" if span.in_use else "inactive"
            blocks.append(
                {"address": address, "size": span.size, "state": state}
                | {"requested_size": requested if span.in_use else 0}
                | {"frames": stack if span.in_use else []}
            )
        in_use = sum(span.size for span in segment.spans if span.in_use)
        return {
            "device": 0,
            "address": _FIRST_ADDRESS + first,
            "total_size": sum(span.size for span in segment.spans),
            "allocated_size": in_use,
            "active_size": in_use,
            "stream": 0,
            "segment_type": "small" if segment.small else "large",
            "segment_pool_id": (0, 0),
            "is_expandable": segment.expandable,
            "frames": [],
            "blocks": blocks,
        }


def _ranges(segments: Sequence[Segment]) -> list[Range]:
    """What is reserved, by address."""
    ranges: list[Range] = []
    for segment in segments:
        own: list[Range] = []
        for span in segment.spans:
            if own and own[-1][1] == span.address:
                own[-1] = own[-1][0], span.address + span.size
            else:
                own.append((span.address, span.address + span.size))
        ranges += own
    return sorted(ranges)


def _without(ranges: Sequence[Range], others: Sequence[Range]) -> Iterator[Range]:
    """The parts of some ranges that are in none of the others; both are by address."""
    at = 0
    for start, end in ranges:
        while at < len(others) and others[at][1] <= start:
            at += 1
        here, first = at, start
        while here < len(others) and others[here][0] < end:
            if others[here][0] > first:
                yield first, others[here][0]
            first = max(first, others[here][1])
            here += 1
        if first < end:
            yield first, end
