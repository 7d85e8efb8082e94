"""From a history to what a picture shows, thinned if there is more than a browser draws well.

Of a long history, moments are kept in pairs: the highest and the lowest of each group of events in
a row, so each peak is exact. Of many blocks, those with the most bytes times moments are kept one
by one, and the others as a sum by category.
"""

from __future__ import annotations

from array import array
from bisect import bisect_left
from collections import defaultdict
from collections.abc import Iterable
from dataclasses import replace
from heapq import nlargest
from itertools import accumulate

from oomdoctor.records.job.measurement import BlockCategory
from oomdoctor.records.report.diagnosis import ReadPhase
from oomdoctor.records.report.run import Place
from oomdoctor.records.report.timeline import (
    CATEGORIES,
    CONFIDENCES,
    PHASES,
    UNKNOWN,
    Timeline,
    TimelineBlocks,
    TimelineDevice,
    TimelineFailure,
    TimelineStack,
)
from oomdoctor.snapshot.blocks import BEFORE, Lives
from oomdoctor.snapshot.history import History
from oomdoctor.snapshot.reading.events import ALLOC, NO_STACK, OOM, Events

MOST_MOMENTS = 400_000
MOST_BLOCKS = 200_000


def timeline_of(
    source: str,
    histories: Iterable[History],
    written_by: str | None = None,
    most_moments: int = MOST_MOMENTS,
    most_blocks: int = MOST_BLOCKS,
) -> Timeline:
    """The timeline of all devices of a snapshot; `source` is the name of its file.

    `written_by` says how the allocations are known if torch did not write it; then the times of its
    events mean nothing, and are left out. The limits are for all devices together.
    """
    stacks, drawn = _Stacks(), list(histories)
    share = max(1, len(drawn))
    devices = tuple(
        _device(history, stacks, most_moments // share, most_blocks // share) for history in drawn
    )
    if written_by is not None:
        devices = tuple(replace(device, at_us=array("q")) for device in devices)
    return Timeline(source, written_by, devices, tuple(stacks.frames), tuple(stacks.stacks))


def _device(
    history: History, stacks: _Stacks, most_moments: int, most_blocks: int
) -> TimelineDevice:
    lives, events = history.lives, history.device.events
    changes = _changes(events, lives)
    kept = _thinned(changes, lives, most_moments, events.failures())
    allocated = _after(lives.allocated, lives.began_allocated, kept)
    reserved = _after(lives.reserved, lives.began_reserved, kept)
    blocks, rest, unseen, small = _blocks(history, kept, stacks, most_blocks)
    failures = tuple(
        TimelineFailure(
            bisect_left(kept, at),
            events.size[at],
            events.address[at],
            stacks.index(history, events.stack[at]),
        )
        for at in events.failures()
    )
    limits = [reserved[failure.moment] + failure.free_bytes for failure in failures]
    first_us = next((at for at in events.at_us if at >= 0), UNKNOWN)
    return TimelineDevice(
        index=history.device.index,
        events=len(events),
        event=array("q", (at + 1 for at in kept)),
        at_us=_times(events, kept, first_us),
        allocated=allocated,
        reserved=reserved,
        phase=array("b", (PHASES.index(_phase(history, at)) for at in kept)),
        blocks=blocks,
        rest=rest,
        steps=tuple((bisect_left(kept, a), bisect_left(kept, b)) for a, b in history.steps),
        peak=max(range(len(allocated)), key=allocated.__getitem__),
        traced=ALLOC in events.action,
        failures=failures,
        limit_bytes=max(limits, default=None),
        truncated=lives.began_reserved > 0,
        has_stacks=history.meanings.has_frames,
        most_moments=len(changes),
        unseen_blocks=unseen,
        small_blocks=small,
    )


def _changes(events: Events, lives: Lives) -> array[int]:
    """The events after which the memory differs, or a request failed; first `BEFORE`."""
    moments = array("q", (BEFORE,))
    before = lives.began_allocated, lives.began_reserved
    for at, now in enumerate(zip(lives.allocated, lives.reserved, strict=True)):
        if now != before or events.action[at] == OOM:
            moments.append(at)
            before = now
    return moments


def _thinned(changes: array[int], lives: Lives, most: int, wanted: list[int]) -> array[int]:
    """At most about `most` of the events: of each group, the highest and the lowest."""
    if len(changes) <= most:
        return changes
    group = -(-2 * len(changes) // most)
    peak_reserved = max(changes[1:], key=lives.reserved.__getitem__)
    kept = {BEFORE, changes[-1], peak_reserved, *wanted}
    for start in range(1, len(changes), group):
        those = changes[start : start + group]
        kept.add(max(those, key=lives.allocated.__getitem__))
        kept.add(min(those, key=lives.allocated.__getitem__))
    return array("q", sorted(kept))


def _after(values: array[int], began: int, kept: array[int]) -> array[int]:
    return array("q", (began if at == BEFORE else values[at] for at in kept))


def _times(events: Events, kept: array[int], first_us: int) -> array[int]:
    """Microseconds since the first event, never falling; empty if torch noted no time."""
    times, latest = array("q"), 0
    if first_us == UNKNOWN:
        return times
    for at in kept:
        if at != BEFORE:
            latest = max(latest, events.at_us[at] - first_us)
        times.append(latest)
    return times


def _phase(history: History, at: int) -> ReadPhase:
    return "unknown" if at == BEFORE else history.meanings.phase(history.device.events.stack[at])


def _blocks(
    history: History, kept: array[int], stacks: _Stacks, most: int
) -> tuple[TimelineBlocks, dict[BlockCategory, array[int]], int, int]:
    """The blocks to draw one by one; the sums of the others by category; how many are in no moment
    that was kept, and how many in these sums."""
    held, end = history.lives.blocks, len(history.device.events)
    moment = _moments(kept, end)
    lives = [
        (moment[born + 1], len(kept) if died == end else moment[died + 1])
        for born, died in zip(held.born, held.died, strict=True)
    ]
    seen = [block for block, (born, died) in enumerate(lives) if born < died]
    chosen = seen
    if len(seen) > most:
        weight = [(d - b) * size for (b, d), size in zip(lives, held.size, strict=True)]
        chosen = nlargest(most, seen, key=weight.__getitem__)
    chosen.sort(key=lambda block: (lives[block][0], -lives[block][1]))
    named = [history.categories.of(block) for block in chosen]
    blocks = TimelineBlocks(
        born=array("i", (lives[block][0] for block in chosen)),
        died=array("i", (lives[block][1] for block in chosen)),
        size=array("q", (held.size[block] for block in chosen)),
        stack=array("i", (stacks.index(history, held.stack[block]) for block in chosen)),
        category=array("b", (CATEGORIES.index(block.category) for block in named)),
        confidence=array("b", (CONFIDENCES.index(block.confidence) for block in named)),
        before=array("b", (held.born[block] == BEFORE for block in chosen)),
        maker=array("b", (held.maker(block, end) == held.stack[block] for block in chosen)),
    )
    rest = _rest(history, lives, set(seen).difference(chosen), len(kept))
    return blocks, rest, len(lives) - len(seen), len(seen) - len(chosen)


def _moments(kept: array[int], end: int) -> array[int]:
    """For each event, from `BEFORE` on, the first kept moment that is not earlier."""
    moment = array("i", bytes(4 * (end + 1)))
    at = 0
    for event in range(BEFORE, end):
        if at < len(kept) and kept[at] < event:
            at += 1
        moment[event + 1] = at
    return moment


def _rest(
    history: History, lives: list[tuple[int, int]], others: set[int], moments: int
) -> dict[BlockCategory, array[int]]:
    sums: dict[BlockCategory, array[int]] = defaultdict(
        lambda: array("q", bytes(8 * (moments + 1)))
    )
    for block in others:
        category = history.categories.of(block).category
        change = sums[category]
        change[lives[block][0]] += history.lives.blocks.size[block]
        change[lives[block][1]] -= history.lives.blocks.size[block]
    return {name: array("q", accumulate(change[:moments])) for name, change in sums.items()}


class _Stacks:
    """The stacks that a timeline refers to, each once."""

    def __init__(self) -> None:
        self.frames: list[Place] = []
        self.stacks: list[TimelineStack] = []
        self._frames: dict[Place, int] = {}
        self._known: dict[int, int] = {}

    def index(self, history: History, stack: int) -> int:
        """The index of a stack of the snapshot, or `UNKNOWN`."""
        if stack == NO_STACK:
            return UNKNOWN
        if stack not in self._known:
            frames = history.meanings.frames(stack)
            where = history.meanings.of(stack).where
            self._known[stack] = len(self.stacks)
            own = frames.index(where) if where in frames else UNKNOWN
            self.stacks.append(TimelineStack(tuple(map(self._frame, frames)), own))
        return self._known[stack]

    def _frame(self, frame: Place) -> int:
        index = self._frames.setdefault(frame, len(self.frames))
        if index == len(self.frames):
            self.frames.append(frame)
        return index
