"""How much each line of code has alive at given moments, and what its growth looks like.

Levels are compared at the same point of each step, or of each pass without steps. An optimizer step
is one moment, at its end. In a long part without steps, such as an evaluation, the moments are the
allocations of a line that comes back at regular distances. Only lines outside the model count,
because its layers come back in each pass as well.

Levels are bytes and blocks. Bytes are those of the tensors. A block may have more, which differs
from one time to the next.

A series of levels grows for good by what is never freed again: the least level that is still to
come. So a buffer that is emptied now and then does not grow, however full it is at the end; one
that is emptied in part does.
"""

from __future__ import annotations

import re
from bisect import bisect_left
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import accumulate, pairwise, takewhile
from statistics import fmean, median, pstdev
from typing import NamedTuple

from oomdoctor.analysis.own_code import is_own
from oomdoctor.records.facts.phases import FORWARD
from oomdoctor.records.report.diagnosis import ReadPhase
from oomdoctor.records.report.run import Place
from oomdoctor.records.report.snapshot import GrowthKind, GrowthUnit
from oomdoctor.snapshot.history import History
from oomdoctor.snapshot.phases import Meaning
from oomdoctor.snapshot.reading.events import ALLOC, OOM

_SHARE = 0.25  # of the blocks of a line; a stack with fewer may be there once
LEAST_RISES = 5
_LARGEST_RISE = 0.5  # of the growth; one rise that is larger is something that is set up late
_STILL = 0.5  # of the usual growth that the last third must have: a cache that fills up slows down
_FALLS = 2  # times the largest fall that the growth has to reach
_LEAST = 8  # passes
_MOST = 2_000  # moments; more are thinned
_LONG = 3  # times the usual distance of two steps
_NO_LOOP = frozenset(("init", "load", "save", "backward", "optimizer"))
_COVERED = 0.5  # of a part without steps that its moments have to span
_CACHE_FILE = re.compile(r"cache_utils\.py$|kv_?cache|past_key", re.IGNORECASE)
_WHOLE_GRAPH = 0.4  # of what a pass has alive at once that stays
_GRAPH_LINES = 3
_SHOWN = 4  # lines
_LARGER = 3  # lines that make more as well, so that the input itself is larger
_IN_A_MODEL = frozenset(("forward", "_call_impl", "_wrapped_call_impl", "__call__"))


@dataclass(slots=True)
class Line:
    """What the stacks with one meaning have alive: changes of bytes and blocks, by moment."""

    stacks: dict[int, int] = field(default_factory=lambda: defaultdict(int))  # how many are left
    block: int = 0  # one of them
    bytes: dict[int, int] = field(default_factory=lambda: defaultdict(int))
    blocks: dict[int, int] = field(default_factory=lambda: defaultdict(int))

    def add(self, moment: int, size: int, count: int) -> None:
        self.bytes[moment] += size
        self.blocks[moment] += count

    def staying(self) -> list[int]:
        """The stacks of most of the blocks that are alive at the last moment."""
        least = _SHARE * max(self.stacks.values(), default=0)
        return [stack for stack, count in self.stacks.items() if count >= least]

    def ends_with(self) -> int:
        """Bytes at the last moment."""
        return sum(self.bytes.values())


@dataclass(frozen=True, slots=True)
class Levels:
    """All lines with something alive at a moment, and the bytes born between two moments."""

    moments: int
    lines: dict[Meaning, Line]
    born: tuple[int, ...]

    def of(self, line: Line) -> tuple[list[int], list[int]]:
        """The bytes and the blocks of a line at each moment."""
        return self._series(line.bytes), self._series(line.blocks)

    def _series(self, changes: dict[int, int]) -> list[int]:
        return list(accumulate(changes.get(moment, 0) for moment in range(self.moments)))


def levels_of(history: History, moments: Moments, among: Iterable[int]) -> Levels:
    """The levels before each of these events, of the blocks `among` all."""
    events, blocks, meanings = moments.events, history.lives.blocks, history.meanings
    first, last, count = events[0], events[-1], len(events)
    lines: dict[Meaning, Line] = {}
    born_between = [0] * count
    for block in among:
        born, died = blocks.born[block], blocks.died[block]
        if born >= last or died < first:
            continue
        size, stack = history.tensor_bytes(block), blocks.stack[block]
        since = bisect_left(events, born + 1)
        born_between[since] += size
        until = bisect_left(events, died + 1, since)
        if since == until:
            continue
        line = lines.setdefault(meanings.of(stack), Line())
        line.add(since, size, 1)
        if until < count:
            line.add(until, -size, -1)
        else:
            line.stacks[stack] += 1
            line.block = block
    return Levels(count, lines, tuple(born_between[1:]))


class Rise(NamedTuple):
    """Growth of `total` from level `first` (an index) on; `at` are the indices that rose."""

    total: int
    first: int
    at: frozenset[int]


def rise_of(levels: Sequence[int]) -> Rise | None:
    """The growth of a series; None if it does not grow steadily to its end."""
    if len(levels) <= LEAST_RISES:
        return None
    stays = list(accumulate(reversed(levels), min))[::-1]
    total = stays[-1] - stays[0]
    rises = [after - before for before, after in pairwise(stays)]
    at = [index for index, rise in enumerate(rises) if rise]
    if len(at) < LEAST_RISES or max(rises) > _LARGEST_RISE * total:
        return None
    highest = accumulate(levels, max)
    largest_fall = max(high - level for high, level in zip(highest, levels, strict=True))
    if total < _FALLS * largest_fall:
        return None
    third = max(1, (len(levels) - 1 - at[0]) // 3)
    if stays[-1] - stays[-1 - third] < _STILL * total / 3:
        return None
    return Rise(total, at[0], frozenset(index + 1 for index in at))


@dataclass(frozen=True, slots=True)
class Moments:
    """Events in order; levels are compared before each. `every` units lie between two."""

    events: tuple[int, ...]
    unit: GrowthUnit
    every: int = 1

    @property
    def start(self) -> int:
        """The index of the first moment that counts: the first pass only sets up."""
        return 0 if self.unit == "step" else 1


def moments_of(history: History) -> Iterator[Moments]:
    """The steps, then each long part without any."""
    events = history.device.events
    ends = [after for _, after in history.steps]
    if ends:
        yield _thinned(ends, "step")
    borders = [0, *ends, len(events)]
    gaps = [after - before for before, after in pairwise(ends)]
    usual = median(gaps) if gaps else 0
    for first, after in pairwise(borders):
        if after - first > _LONG * usual:
            passes = _passes(history, first, after)
            if len(passes) >= _LEAST:
                yield _thinned(passes, "pass")


def _thinned(events: list[int], unit: GrowthUnit) -> Moments:
    every = -(-len(events) // _MOST)
    return Moments(tuple(events[::-1][::every][::-1]), unit, every)


def _passes(history: History, first: int, after: int) -> list[int]:
    """The allocations of the line outside the model that comes back most regularly in a part."""
    events, meanings = history.device.events, history.meanings
    at: dict[int, list[int]] = defaultdict(list)
    for event in range(first, after):
        if events.action[event] == OOM:
            break
        if events.action[event] == ALLOC:
            at[events.stack[event]].append(event)
    regular = [
        (_irregularity(at_events), at_events[0], at_events)
        for stack, at_events in at.items()
        if len(at_events) >= _LEAST
        and at_events[-1] - at_events[0] >= _COVERED * (after - first)
        and (meaning := meanings.of(stack)).where is not None
        and not meaning.depth
        and meaning.phase not in _NO_LOOP
    ]
    return min(regular)[2] if regular else []


def _irregularity(events: list[int]) -> float:
    gaps = [after - before for before, after in pairwise(events)]
    return round(pstdev(gaps) / fmean(gaps), 2)


def kind_of(
    history: History, moments: Moments, grown: Sequence[tuple[Meaning, Line, int]]
) -> GrowthKind:
    """What the growth of these lines looks like; the third of each is how many bytes it grew."""
    if not history.meanings.has_frames:
        return "unknown"
    total = sum(size for *_, size in grown)
    main, largest, _ = max(grown, key=lambda member: member[2])
    phases = {meaning: phase_of(history, line) for meaning, line, _ in grown}
    if "optimizer" in phases.values():
        return "optimizer"
    files = (meaning.line.file for meaning, *_ in grown if meaning.line is not None)
    if any(map(_CACHE_FILE.search, files)) or phases[main] == "generate":
        return "kv_cache"
    passed = sum(size for meaning, _, size in grown if phases[meaning] in FORWARD)
    if passed < total / 2 or (main.depth == 0 and phases[main] in ("forward", "unknown")):
        return "tensors"
    if len(grown) >= _GRAPH_LINES and _keeps_a_graph(history, moments):
        return "graph"
    if phases[main] == "eval":
        return "evaluation"
    is_logits = history.categories.of(largest.block).category == "logits"
    # How many calls of `forward` are around the outermost blocks of a pass.
    meanings = map(history.meanings.of, set(history.lives.blocks.stack))
    depths = (meaning.depth for meaning in meanings if meaning.phase == "forward" and meaning.depth)
    is_output = is_logits or main.depth <= min(depths, default=1)
    return "outputs" if is_output else "activations"


def is_larger_input(
    history: History, moments: Moments, levels: Levels, line: Line, blocks: Iterable[int]
) -> bool:
    """Whether a line has more alive because each pass makes more: longer rows, not a leak.

    Then the blocks that live for one pass only grow in the same proportion.
    """
    first, last, all_blocks = moments.events[1], moments.events[-1], history.lives.blocks
    quarter = max(1, (len(moments.events) - 1) // 4)
    early, late = moments.events[quarter], moments.events[-1 - quarter]
    made: dict[int, list[int]] = {}
    for block in blocks:
        born = all_blocks.born[block]
        if first <= born < early or late <= born < last:
            both = made.setdefault(all_blocks.stack[block], [0, 0])
            both[born >= late] += history.tensor_bytes(block)
    series = levels.of(line)[0]
    begins, ends = sum(series[1 : quarter + 1]), sum(series[-quarter:])
    least = 1 + (ends / max(1, begins) - 1) / 2
    growing = [s for s, (a, b) in made.items() if a and b >= least * a and s not in line.stacks]
    return len(growing) >= _LARGER


def calls(history: History, stacks: Iterable[int]) -> tuple[Place, ...]:
    """The user's own lines outside the model that are around all stacks, the innermost first."""
    chains = [_own_chain(history.meanings.frames(stack)) for stack in stacks]
    common = takewhile(
        lambda frames: all(frame == frames[0] for frame in frames),
        zip(*(chain for chain in chains if chain), strict=False),
    )
    innermost = [frames[0] for frames in common]
    return tuple(innermost[::-1][:_SHOWN])


def _own_chain(frames: tuple[Place, ...]) -> list[Place]:
    """The user's lines around the model, outermost first."""
    outside = takewhile(
        lambda frame: frame.function not in _IN_A_MODEL,
        (frame for frame in reversed(frames) if frame.is_python),
    )
    return [frame for frame in outside if is_own(frame.file)]


def phase_of(history: History, line: Line) -> ReadPhase:
    """The phase in which the blocks of a line were made."""
    return history.meanings.phase(line.staying()[0])


def _keeps_a_graph(history: History, moments: Moments) -> bool:
    """Whether most of what the last whole pass had alive at once is alive after it."""
    first, after = moments.events[-2], moments.events[-1]
    blocks, stays = history.lives.blocks, 0
    changes: dict[int, int] = {}
    for block, born in enumerate(blocks.born):
        if not first <= born < after:
            continue
        if history.meanings.phase(blocks.stack[block]) not in FORWARD:
            continue
        size, died = blocks.size[block], blocks.died[block]
        changes[born] = changes.get(born, 0) + size
        if died < after:
            changes[died] = changes.get(died, 0) - size
        else:
            stays += size
    most = max(accumulate(size for _, size in sorted(changes.items())), default=0)
    return stays >= _WHOLE_GRAPH * most > 0
