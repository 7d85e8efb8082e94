"""What a caught out-of-memory error leaves behind.

Its traceback holds the frames of the failed step, and they hold their tensors. Kept somewhere, it
keeps them for as long.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right

from oomdoctor.records.inside.snapshot import SnapshotGrowth
from oomdoctor.snapshot.composition import place
from oomdoctor.snapshot.growth.kinds import calls
from oomdoctor.snapshot.history import History
from oomdoctor.snapshot.reading.events import OOM

_LATER = 2  # steps after the failure that end with the blocks still there
_MOST = 0.5  # of what the failed step had alive
_LEAST = 1 << 20  # bytes
_OF_A_STEP = ("forward", "loss", "backward", "eval", "data", "unknown")


def failures_of(history: History) -> SnapshotGrowth | None:
    """What failed requests left behind; None if nothing or if the program ended with them."""
    events, blocks, meanings = history.device.events, history.lives.blocks, history.meanings
    ends = [after for _, after in history.steps]
    left: dict[int, int] = {}  # bytes that stayed, by the event of the failure
    since = events_later = 0
    for failed in (at for at, action in enumerate(events.action) if action == OOM):
        step = bisect_right(ends, failed)
        if step + _LATER >= len(ends):
            break
        begin, later = ends[step - 1] if step else 0, ends[step + _LATER]
        first = bisect_left(history.births, begin)
        last = bisect_left(history.births, failed)
        had = [
            block
            for block in history.by_birth[first:last]
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
        where=place(meaning.where or meaning.line),
        kind="exception",
        confidence="high" if events_later > _LATER + 1 else "medium",
        unit="failure",
        since_step=since,
        total_bytes=total,
        called_from=calls(history, [stack]),
    )
