"""What growth looks like: by the lines that made the blocks, and by how much of a pass stays."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from itertools import accumulate, takewhile

from oomdoctor.analysis.own_code import is_own
from oomdoctor.records.facts.phases import FORWARD
from oomdoctor.records.report.diagnosis import ReadPhase
from oomdoctor.records.report.run import Place
from oomdoctor.records.report.snapshot import GrowthKind
from oomdoctor.snapshot.growth.levels import Levels, Line, Moments
from oomdoctor.snapshot.history import History
from oomdoctor.snapshot.phases import Meaning

_CACHE_FILE = re.compile(r"cache_utils\.py$|kv_?cache|past_key", re.IGNORECASE)
_WHOLE_GRAPH = 0.4  # of what a pass has alive at once that stays
_GRAPH_LINES = 3
_SHOWN = 4  # lines
_LARGER = 3  # lines that make more as well, so that the input itself is larger
_IN_A_MODEL = frozenset(("forward", "_call_impl", "_wrapped_call_impl", "__call__"))


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
