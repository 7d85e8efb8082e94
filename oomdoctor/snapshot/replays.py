"""A trace as births and deaths, one replay of it, and whether replays of it can be trusted.

When torch gave cached memory back to the driver, and whether a request made it do so.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

from oomdoctor.analysis.allocator.records import Mark, Replay
from oomdoctor.analysis.allocator.replay import replay_order
from oomdoctor.analysis.allocator.settings import AllocatorSettings, EqualBlocks
from oomdoctor.records.report.snapshot import ReplayedRun
from oomdoctor.snapshot.blocks import Lives
from oomdoctor.snapshot.history import History
from oomdoctor.snapshot.reading.events import (
    ALLOC,
    NO_STACK,
    OOM,
    SEGMENT_ALLOC,
    SEGMENT_FREE,
    SEGMENT_MAP,
    SEGMENT_UNMAP,
    Events,
)

_AGREES = 0.02  # of the reserved peak
_RULES: tuple[EqualBlocks, ...] = ("lowest", "oldest", "oldest_segment")
_ELSEWHERE = "a replay of the trace does not run out of memory where the program did"
_UNLIMITED = 2**60  # bytes
_MOST_EVENTS = 8_000_000  # in all replays of a trace; a million takes one to five seconds


class Runs:
    """The replays of one trace. They are counted, so that a long trace does not take forever."""

    def __init__(self, history: History) -> None:
        self._history, self.order = history, order_of(history)
        self.settings = history.settings
        """The allocator's settings when the trace was recorded."""
        self._left = _MOST_EVENTS
        self._needed: dict[tuple[bool, int], int] = {}
        self.note = self._disagreement()
        """Why replays of the trace mean nothing; None if they agree with it."""

    def can(self) -> bool:
        """Whether there is time for one more."""
        return self._left >= 2 * len(self.order.events)

    def run(
        self,
        capacity_bytes: int,
        *,
        expandable: bool | None = None,
        sizes: Sequence[int] | None = None,
        without: Collection[int] = (),
    ) -> ReplayedRun:
        """Replay on a device where torch can reserve so much.

        `sizes` replace those of the blocks, and blocks in `without` (from 0) are left out.
        """
        settings = self.settings
        if expandable is not None:
            settings = replace(settings, expandable_segments=expandable)
        changed = list(sizes or self.order.sizes)
        for block in without:
            changed[block] = 0
        key = (settings.expandable_segments, hash(tuple(changed)))
        needed = self._needed.get(key)
        if needed is None:
            needed = self._replay(None, settings, changed).peak_reserved_bytes
            self._needed[key] = needed
        if needed <= capacity_bytes:
            return ReplayedRun(True, needed, needed, 0, None)
        replay = self._replay(capacity_bytes, settings, changed)
        failure, short = replay.out_of_memory, None
        if failure is not None:
            short = failure.requested_bytes - (capacity_bytes - failure.reserved_bytes)
        return ReplayedRun(replay.fits, needed, replay.peak_reserved_bytes, replay.retries, short)

    def needed(self, *, expandable: bool | None = None) -> int:
        """The reserved peak of the trace without a limit, in bytes."""
        return self.run(_UNLIMITED, expandable=expandable).needed_bytes

    def _replay(
        self, capacity_bytes: int | None, settings: AllocatorSettings, sizes: Sequence[int]
    ) -> Replay:
        order = self.order
        self._left -= len(order.events)
        return replay_order(
            order.events, sizes, order.marks, settings, capacity_bytes=capacity_bytes
        )

    def _disagreement(self) -> str | None:
        """Find the rule that makes a replay agree with the trace; why there is none."""
        if ALLOC not in self._history.device.events.action:
            return "the snapshot has no history"
        if len(self.order.events) * len(_RULES) > self._left:
            return f"the trace is too long to be replayed ({len(self.order.events):,} events)"
        order = self.order
        if order.failed is not None:
            capacity, last = order.capacity_bytes, len(order.events) - 2
            fails = self._choose(lambda s: self._replay(capacity, s, order.sizes).failed_at == last)
            return None if fails else _ELSEWHERE
        if self._reserves_that():
            return None
        late = ", which began when memory was already in use"
        began = late if self._history.lives.began_reserved else ""
        return f"a replay does not reserve what the trace shows{began}"

    def _reserves_that(self) -> bool:
        """Whether a replay reserves what the trace shows."""
        lives = self._history.lives
        peak = max(lives.reserved)
        releases = releases_of(self._history.device.events, lives)
        capacity = peak if any(release.is_retry for release in releases) else None

        def agrees(settings: AllocatorSettings, within: float) -> bool:
            replay = self._replay(capacity, settings, self.order.sizes)
            return replay.fits and abs(replay.peak_reserved_bytes - peak) <= within * peak

        return self._choose(lambda s: agrees(s, 0)) or self._choose(lambda s: agrees(s, _AGREES))

    def _choose(self, agrees: Callable[[AllocatorSettings], bool]) -> bool:
        """Take the first rule for equal blocks that agrees; a snapshot does not name its torch."""
        for rule in _RULES:
            settings = replace(self.settings, equal_blocks=rule)
            if agrees(settings):
                self.settings = settings
                return True
        return False


@dataclass(frozen=True, slots=True)
class Order:
    """Events `+(i + 1)` for the birth of block i and `-(i + 1)` for its death, and their sizes.

    Blocks are those of the history. If a request failed in the end, it is one more block, the last
    one, that dies at once; `failed` is the event in the trace, `capacity_bytes` what torch could
    reserve then. `marks` say where the cache was emptied by hand.
    """

    events: list[int]
    sizes: list[int]
    marks: tuple[Mark, ...]
    failed: int | None
    capacity_bytes: int | None


def order_of(history: History) -> Order:
    """The order of a trace, up to the last request that failed."""
    blocks, events = history.lives.blocks, history.device.events
    failures = events.failures()
    failed = failures[-1] if failures else None
    end = len(events) if failed is None else failed
    moments = []
    for block, (born, died) in enumerate(zip(blocks.born, blocks.died, strict=True), start=1):
        if born < end:
            moments.append((born, block))
            if died < end:
                moments.append((died, -block))
    moments.sort()
    sizes = [history.tensor_bytes(block) for block in range(len(blocks))]
    order = [block for _, block in moments]
    capacity = None
    if failed is not None:
        sizes.append(events.size[failed])
        order += [len(sizes), -len(sizes)]
        capacity = history.lives.reserved[failed] + events.address[failed]
    times = [event for event, _ in moments]
    marks = tuple(
        Mark(bisect_left(times, release.event), "emptied", empties=True)
        for release in releases_of(events, history.lives)
        if release.event < end
        # An earlier request that failed emptied the cache, and it is not in the order.
        and (not release.is_retry or release.after in failures[:-1])
    )
    return Order(order, sizes, marks, failed, capacity)


class Release(NamedTuple):
    """A run of events that gave memory back: its first, and the first event after it.

    `is_retry` says that a request made it, which had failed.
    """

    event: int
    after: int
    is_retry: bool


def releases_of(events: Events, lives: Lives) -> Iterator[Release]:
    """The releases of a trace; one that is no retry is `empty_cache`.

    With what it gives back for a request, torch notes the stack of the request. Before torch 2.2
    it notes none; then the request would have led to more than was ever reached.
    """
    peak = max(lives.reserved, default=0)
    first: int | None = None  # of the events that gave memory back
    for at, action in enumerate(events.action):
        if action in (SEGMENT_FREE, SEGMENT_UNMAP):
            first = at if first is None else first
            continue
        if first is not None:
            yield Release(first, at, _is_retry(events, lives, first, at, peak))
        first = None
    if first is not None:
        yield Release(first, len(events), False)


def _is_retry(events: Events, lives: Lives, first: int, after: int, peak: int) -> bool:
    if events.action[after] not in (SEGMENT_ALLOC, SEGMENT_MAP, OOM):
        return False
    noted = events.stack[after - 1]
    if noted != NO_STACK:
        return noted == events.stack[after]
    had = lives.reserved[first - 1] if first else lives.began_reserved
    return had + events.size[after] > peak
