"""Memory over time as a small picture of text."""

from __future__ import annotations

from oomdoctor.records.inside.run import RankMemory
from oomdoctor.render.blocks import Verbatim
from oomdoctor.render.curve import curve
from oomdoctor.units import format_bytes

_WIDTH = 48


def curve_lines(rank: RankMemory, *, signs: bool) -> Verbatim | None:
    """Allocated memory from the first allocation to the last; None without any.

    A column is the highest point of its stretch. Its full height is the peak.
    """
    points = rank.memory
    if len(points) < 2:
        return None
    width = min(_WIDTH, len(points))
    columns = [
        points[i * len(points) // width : (i + 1) * len(points) // width] for i in range(width)
    ]
    heights = [max(point.allocated_bytes for point in part) for part in columns]
    marks, seen = "", 0
    for part in columns:
        step = part[-1].step
        marks += str(step % 10) if step > seen else " "
        seen = max(seen, step)
    below = [marks.rstrip() + "  ends of steps"] if marks.strip() else []
    line = f"{curve(heights, signs=signs)}  peak {format_bytes(max(heights))} allocated"
    return Verbatim((line, *below))
