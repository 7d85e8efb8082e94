"""The events of a trace in columns, and call stacks that are each kept once.

An event as torch writes it is a dictionary of nine entries and a list of frames; here it is five
numbers. A trace has up to millions of events, and few different stacks.
"""

from __future__ import annotations

from array import array
from dataclasses import dataclass, field
from typing import Any

from oomdoctor.records.report.run import Place

# What torch calls an event; torch 2.0 wrote one event for a free.
_CODES = {
    "alloc": (ALLOC := 0),
    "free_requested": (FREE_REQUESTED := 1),
    "free_completed": (FREE_COMPLETED := 2),
    "free": FREE_COMPLETED,
    "segment_alloc": (SEGMENT_ALLOC := 3),
    "segment_free": (SEGMENT_FREE := 4),
    "segment_map": (SEGMENT_MAP := 5),
    "segment_unmap": (SEGMENT_UNMAP := 6),
    "snapshot": 7,
    "oom": (OOM := 8),
}
_OTHER = 9
NO_STACK = -1


@dataclass(slots=True)
class Events:
    """The events of one device in the order of time; all columns have one length.

    `address` is that of the block or segment; of "oom" it is the bytes that the device had free.
    `size` is what was requested, in bytes. `at_us` is microseconds since 1970, or -1. `stack` is an
    index of `Stacks`, or `NO_STACK`.
    """

    action: array[int] = field(default_factory=lambda: array("b"))
    address: array[int] = field(default_factory=lambda: array("Q"))
    size: array[int] = field(default_factory=lambda: array("Q"))
    at_us: array[int] = field(default_factory=lambda: array("q"))
    stack: array[int] = field(default_factory=lambda: array("i"))

    def __len__(self) -> int:
        return len(self.action)

    def failures(self) -> list[int]:
        """The indices of the requests that failed."""
        return [at for at, action in enumerate(self.action) if action == OOM]

    def add(self, entry: dict[Any, Any], stack: int) -> None:
        """Add an event as torch describes it.

        Raises:
            TypeError, ValueError, OverflowError: it is none.
        """
        action = _CODES.get(str(entry.get("action")), _OTHER)
        address = entry.get("addr", entry.get("device_free", 0))
        self.action.append(action)
        self.address.append(address)
        self.size.append(entry.get("size", 0))
        self.at_us.append(entry.get("time_us", -1))
        self.stack.append(stack)


class Stacks:
    """Call stacks, each once: tuples of indices of `frames`, innermost first.

    Native code has the line 0, and a file without a meaning.
    """

    def __init__(self) -> None:
        self.frames: list[Place] = []
        self.stacks: list[tuple[int, ...]] = []
        self._frames: dict[Place, int] = {}
        self._stacks: dict[tuple[int, ...], int] = {}
        # By identity: torch describes a frame once and refers to it from all stacks.
        self._seen: dict[int, int] = {}
        self._kept: list[dict[Any, Any]] = []

    def add(self, before: int, items: list[dict[Any, Any]]) -> int:
        """The index of the stack `before` with more frames at its end."""
        frames = self.stacks[before] if before != NO_STACK else ()
        return self._stack((*frames, *map(self._frame, items)))

    def of(self, index: int) -> tuple[Place, ...]:
        """The frames of a stack, innermost first."""
        if index == NO_STACK:
            return ()
        return tuple(self.frames[frame] for frame in self.stacks[index])

    def _stack(self, frames: tuple[int, ...]) -> int:
        index = self._stacks.setdefault(frames, len(self.stacks))
        if index == len(self.stacks):
            self.stacks.append(frames)
        return index

    def _frame(self, item: dict[Any, Any]) -> int:
        index = self._seen.get(id(item))
        if index is None:
            line = int(item.get("line", 0))
            if not -1 <= line < 1 << 31:
                raise OverflowError("a frame has a line number that no file has")
            # Windows knows both slashes; the tables of frames and files have this one.
            file = str(item.get("filename")).replace("\\", "/")
            frame = Place(file, line, str(item.get("name")))
            index = self._frames.setdefault(frame, len(self.frames))
            if index == len(self.frames):
                self.frames.append(frame)
            self._seen[id(item)] = index
            self._kept.append(item)
        return index


class Traces:
    """Takes the lists of a snapshot as they are read: events and stacks do not stay dictionaries.

    A list of events gets one `Events` as its only item, a list of frames the index of its stack.
    """

    def __init__(self) -> None:
        self.stacks = Stacks()
        self._swept = 0

    def extend(self, target: list[Any], items: list[Any], memo: list[Any]) -> int:
        """Append items to a list, or what is kept of them; returns how many were not kept.

        The items may be in the memo as well.
        """
        first = items[0] if items else None
        if type(first) is not dict:
            target += items
        elif "filename" in first:
            before = target[0] if target else NO_STACK
            target[:] = [self.stacks.add(before, items)]
        elif "action" in first:
            if not target:
                target.append(Events())
            self._add(target[0], items)
            self._sweep(memo)
            return len(items)
        else:
            target += items
        return 0

    def _add(self, events: Events, items: list[Any]) -> None:
        for item in items:
            frames = item.get("frames") or (NO_STACK,)
            events.add(item, frames[0])
            item.clear()

    def _sweep(self, memo: list[Any]) -> None:
        """Let go of the dictionaries of events that only the memo still has."""
        for at in range(self._swept, len(memo)):
            if type(memo[at]) is dict and not memo[at]:
                memo[at] = None
        self._swept = len(memo)
