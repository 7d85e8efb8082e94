"""A series of sizes as one line of text."""

from __future__ import annotations

from collections.abc import Sequence

_BARS = "▁▂▃▄▅▆▇█"
_ASCII = "_.-:=+*#"


def curve(sizes: Sequence[int], *, signs: bool) -> str:
    """A bar for each size; the full height is the largest. Empty for fewer than two sizes."""
    full = max(sizes, default=0)
    if len(sizes) < 2 or full <= 0:
        return ""
    bars = _BARS if signs else _ASCII
    return "".join(bars[min(len(bars) - 1, int(size / full * len(bars)))] for size in sizes)
