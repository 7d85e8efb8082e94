"""Memory that a program leaves behind again and again, all of a trace in one answer.

What a caught out-of-memory error leaves behind.

Its traceback holds the frames of the failed step, and they hold their tensors. Kept somewhere, it
keeps them for as long.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import accumulate, pairwise

from oomdoctor.records.report.diagnosis import Confidence
from oomdoctor.records.report.snapshot import HeldBlocks, SnapshotGrowth
from oomdoctor.snapshot.growth_levels import (
    LEAST_RISES,
    Levels,
    Line,
    Moments,
    Rise,
    calls,
    is_larger_input,
    kind_of,
    levels_of,
    moments_of,
    phase_of,
    rise_of,
)
from oomdoctor.snapshot.history import History
from oomdoctor.snapshot.phases import Meaning
from oomdoctor.snapshot.reading.events import OOM
from oomdoctor.units import KIB

_LEAST_BYTES = 10 * KIB  # a step; it makes 1 GiB in 100,000 steps
_ALIKE = 0.6  # of the rises that two lines have in common
_OF_THE_PEAK = 0.1  # that a part without steps has to add
_FRAGMENTS = 0.1  # of the reserved peak
_SHOWN = 8


_LATER = 2  # steps after the failure that end with the blocks still there
_MOST = 0.5  # of what the failed step had alive
_LEAST = 1 << 20  # bytes
_OF_A_STEP = ("forward", "loss", "backward", "eval", "data", "unknown")


@dataclass(frozen=True, slots=True)
class _Grown:
    meaning: Meaning
    line: Line
    rise: Rise
    accumulates: bool
    """Whether there are more and more blocks, not one that becomes larger."""


def growth_of(history: History, capacity_bytes: int | None = None) -> tuple[SnapshotGrowth, ...]:
    """What grows, the fastest first; empty if nothing does, or if the trace is too short to tell.

    `capacity_bytes` is what torch can reserve on the device, None if it is not known.
    """
    growth: list[SnapshotGrowth] = []
    named: set[Meaning] = set()
    for moments in moments_of(history):
        blocks = history.blocks_born(moments.events[0], moments.events[-1])
        among = range(len(history.lives.blocks)) if moments.unit == "step" else blocks
        levels = levels_of(history, moments, among)
        grown = [line for line in _grown(history, moments, levels) if line.meaning not in named]
        for group in _groups(grown):
            answer = _answer(history, moments, group)
            if answer is not None and _counts(history, moments, answer, group):
                named |= {line.meaning for line in group}
                growth.append(_with_end(history, moments, answer, capacity_bytes))
    failures = failures_of(history)
    growth += [failures] if failures else []
    if not growth:
        fragments = _fragments(history)
        growth += [fragments] if fragments else []
    return tuple(sorted(growth, key=lambda kind: -kind.bytes_per_step))


def _grown(history: History, moments: Moments, levels: Levels) -> Iterator[_Grown]:
    for meaning, line in levels.lines.items():
        if len(line.bytes) < LEAST_RISES or line.ends_with() <= 0:
            continue
        sizes, counts = levels.of(line)
        rise = rise_of(sizes[moments.start :])
        if rise is None:
            continue
        accumulates = rise_of(counts[moments.start :]) is not None
        if not accumulates:
            blocks = history.blocks_born(moments.events[0], moments.events[-1])
            if is_larger_input(history, moments, levels, line, blocks):
                continue
        yield _Grown(meaning, line, rise, accumulates)


def _groups(grown: list[_Grown]) -> list[list[_Grown]]:
    """Lines that grow at the same moments."""
    groups: list[list[_Grown]] = []
    for line in sorted(grown, key=lambda line: -line.rise.total):
        for group in groups:
            first, here = group[0].rise.at, line.rise.at
            if len(first & here) >= _ALIKE * len(first | here):
                group.append(line)
                break
        else:
            groups.append([line])
    return groups


def _answer(history: History, moments: Moments, group: list[_Grown]) -> SnapshotGrowth | None:
    total = sum(member.rise.total for member in group)
    first = min(member.rise.first for member in group)
    units = (len(moments.events) - moments.start - 1 - first) * moments.every
    if total < _LEAST_BYTES * units:
        return None
    if all(phase_of(history, member.line) == "optimizer" for member in group):
        return None  # parameters that are used later than others get their states later
    kind = kind_of(
        history, moments, [(member.meaning, member.line, member.rise.total) for member in group]
    )
    made = [
        member for member in group if kind != "optimizer" or phase_of(history, member.line) != kind
    ]
    # Of a model, what was passed to it is left out: its line is another one.
    passed = [member for member in made if member.meaning.depth] or made
    main = made[0].meaning
    return SnapshotGrowth(
        bytes_per_step=total // units,
        steps=units,
        where=main.where or main.line,
        kind=kind,
        confidence=_confidence(group, kind == "unknown"),
        unit=moments.unit,
        since_step=(first + moments.start) * moments.every + 2 - moments.start,
        total_bytes=sum(member.line.ends_with() for member in group),
        called_from=calls(history, (stack for member in passed for stack in member.line.staying())),
        lines=tuple(_held(history, member) for member in group[:_SHOWN]),
    )


def _held(history: History, member: _Grown) -> HeldBlocks:
    category, confidence = history.categories.of(member.line.block)
    return HeldBlocks(
        bytes=member.line.ends_with(),
        count=sum(member.line.blocks.values()),
        category=category,
        confidence=confidence,
        where=member.meaning.where,
        library_where=member.meaning.line,
    )


def _confidence(group: Sequence[_Grown], unknown: bool) -> Confidence:
    if unknown:
        return "low"
    main = group[0]
    sure = main.accumulates and len(main.rise.at) >= 2 * LEAST_RISES
    return "high" if sure else "medium"


def _counts(
    history: History, moments: Moments, growth: SnapshotGrowth, group: Sequence[_Grown]
) -> bool:
    """Whether growth within a part without steps matters: it is still there at the end of the
    trace, or memory ran out, or an evaluation made the peak."""
    if moments.unit == "step":
        return True
    events, allocated = history.device.events, history.lives.allocated
    first, last = moments.events[0], moments.events[-1]
    end = next((after for _, after in history.steps if after > last), len(events))
    if any(events.action[at] == OOM for at in range(last, end)):
        return True
    if growth.kind == "kv_cache":
        return False  # a longer text has more keys and values
    peak = max(allocated)
    if growth.total_bytes < _OF_THE_PEAK * peak:
        return False
    stacks = {stack for member in group for stack in member.line.staying()}
    blocks = history.lives.blocks
    at_end = sum(
        history.tensor_bytes(block)
        for block in history.blocks_born(first, last)
        if blocks.stack[block] in stacks and blocks.died[block] >= len(events)
    )
    made_peak = max(allocated[first:end]) == peak
    return at_end >= growth.total_bytes / 2 or (growth.kind == "evaluation" and made_peak)


def _with_end(
    history: History, moments: Moments, growth: SnapshotGrowth, capacity_bytes: int | None
) -> SnapshotGrowth:
    """The growth with the step in which the device will be full."""
    if capacity_bytes is None or not growth.bytes_per_step:
        return growth
    first, last = moments.events[-2], moments.events[-1]
    room = capacity_bytes - max(history.lives.allocated[first:last])
    done = len(moments.events) * moments.every
    return replace(growth, full_at_step=done + max(0, -(-room // growth.bytes_per_step)))


def _fragments(history: History) -> SnapshotGrowth | None:
    """Reserved memory that grows although what is allocated does not explain it."""
    moments = next(moments_of(history), None)
    lives = history.lives
    if moments is None:
        return None
    borders = moments.events
    peaks = [max(lives.allocated[a:b]) for a, b in pairwise(borders) if b > a]
    reserved = [lives.reserved[b - 1] for a, b in pairwise(borders) if b > a]
    gaps = [r - p for r, p in zip(reserved, accumulate(peaks, max), strict=True)]
    rise = rise_of(gaps)
    if rise is None or rise.total < _FRAGMENTS * max(lives.reserved):
        return None
    units = (len(gaps) - 1 - rise.first) * moments.every
    return SnapshotGrowth(
        bytes_per_step=rise.total // units,
        steps=units,
        where=None,
        kind="fragmentation",
        confidence="medium",
        unit=moments.unit,
        since_step=rise.first * moments.every + 2,
        total_bytes=gaps[-1],
    )


def failures_of(history: History) -> SnapshotGrowth | None:
    """What failed requests left behind; None if nothing or if the program ended with them."""
    events, blocks, meanings = history.device.events, history.lives.blocks, history.meanings
    ends = [after for _, after in history.steps]
    left: dict[int, int] = {}  # bytes that stayed, by the event of the failure
    since = events_later = 0
    for failed in events.failures():
        step = bisect_right(ends, failed)
        if step + _LATER >= len(ends):
            break
        begin, later = ends[step - 1] if step else 0, ends[step + _LATER]
        had = [
            block
            for block in history.blocks_born(begin, failed)
            if blocks.died[block] > failed and meanings.phase(blocks.stack[block]) in _OF_A_STEP
        ]
        stays = sum(blocks.size[block] for block in had if blocks.died[block] >= later)
        if stays >= max(_LEAST, _MOST * sum(blocks.size[block] for block in had)):
            left[failed] = stays
            since, events_later = since or step + 1, len(ends) - step
    if not left:
        return None
    failed = max(left, key=left.__getitem__)
    stack = events.stack[failed]
    meaning = meanings.of(stack)
    total = sum(left.values())
    return SnapshotGrowth(
        bytes_per_step=total // len(left),
        steps=len(left),
        where=meaning.where or meaning.line,
        kind="exception",
        confidence="high" if events_later > _LATER + 1 else "medium",
        unit="failure",
        since_step=since,
        total_bytes=total,
        called_from=calls(history, [stack]),
    )
