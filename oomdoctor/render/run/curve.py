"""Memory over time as a small picture of text."""

from __future__ import annotations

from oomdoctor.records.run import RankMemory
from oomdoctor.render.blocks import Verbatim
from oomdoctor.units import format_bytes

_WIDTH = 48
_BARS = "▁▂▃▄▅▆▇█"
_ASCII = "_.-:=+*#"


def curve_lines(rank: RankMemory, *, signs: bool) -> Verbatim | None:
    """Allocated memory from the first allocation to the last; None without any.

    A column is the highest point of its stretch. Its full height is the peak.
    """
    points = rank.memory
    if len(points) < 2:
        return None
    full = max(1, *(point.allocated_bytes for point in points))
    width = min(_WIDTH, len(points))
    columns = [
        points[i * len(points) // width : (i + 1) * len(points) // width] for i in range(width)
    ]
    bars = _BARS if signs else _ASCII
    line, marks, seen = "", "", 0
    for part in columns:
        height = max(point.allocated_bytes for point in part) / full
        line += bars[min(len(bars) - 1, int(height * len(bars)))]
        step = part[-1].step
        marks += str(step % 10) if step > seen else " "
        seen = max(seen, step)
    below = [marks.rstrip() + "  ends of steps"] if marks.strip() else []
    return Verbatim((f"{line}  peak {format_bytes(full)} allocated", *below))
