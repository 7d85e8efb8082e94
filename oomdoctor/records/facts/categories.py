"""What memory is held for: one row a category, which traces, records, tables and pictures read."""

from __future__ import annotations

from dataclasses import dataclass

WEIGHTS, GRADIENTS, OPTIMIZER = "weights", "gradients", "optimizer"
ACTIVATIONS, LOGITS = "activations", "logits"
INPUTS, TEMPORARY, OTHER = "inputs", "temporary", "other"


@dataclass(frozen=True, slots=True)
class Category:
    """A category; in JSON its size is `name` with `_bytes`.

    `light` and `dark` are its colors on pages, `hsl` is its hue, saturation and lightness where
    single blocks are drawn, and `sign` its letter in a bar of letters. `stack` is its place in a
    picture over time, from the bottom: what stays comes first. A breakdown of a peak counts it as
    `within` another one, if that is given.
    """

    name: str
    words: str
    stack: int
    sign: str = ""
    light: str = ""
    dark: str = ""
    hsl: tuple[int, int, int] = (0, 0, 0)
    within: str | None = None


TABLE = {
    category.name: category
    for category in (
        Category(WEIGHTS, "weights", 0, "w", "#2866b0", "#4a86d0", (212, 52, 56)),
        Category(GRADIENTS, "gradients", 2, "g", "#12876f", "#1fa588", (168, 48, 42)),
        Category(OPTIMIZER, "optimizer states", 1, "o", "#e39a2d", "#e39a2d", (35, 78, 55)),
        Category(ACTIVATIONS, "activations", 3, "a", "#d98cc4", "#d98cc4", (322, 38, 62)),
        Category(LOGITS, "logits", 4, "l", "#a83a17", "#cf5a34", (10, 68, 56)),
        Category(INPUTS, "inputs", 5, within=OTHER),
        Category(TEMPORARY, "temporary", 6, hsl=(52, 70, 56), within=OTHER),
        Category(OTHER, "other", 7, "+", "#f2e7a6", "#e6dc9d", (220, 8, 62)),
    )
}
"""The categories by name, in the order of tables and bars."""
CATEGORIES = tuple(name for name in TABLE if name != OTHER)
"""Those that a recorded step distinguishes."""
BREAKDOWN = tuple(name for name, category in TABLE.items() if category.within is None)
"""Those of a breakdown of a peak."""
STACKED = tuple(sorted(TABLE, key=lambda name: TABLE[name].stack))
"""From the bottom to the top of a picture over time: bands above what stays move little."""
