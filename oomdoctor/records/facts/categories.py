"""What memory is held for: `data/categories.toml`, which traces, tables and pictures read."""

from __future__ import annotations

from dataclasses import dataclass

from oomdoctor.package_data import rows_of

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


TABLE = {category.name: category for category in rows_of(Category, "categories.toml")}
"""The categories by name, in the order of tables and bars."""
CATEGORIES = tuple(name for name in TABLE if name != OTHER)
"""Those that a recorded step distinguishes."""
BREAKDOWN = tuple(name for name, category in TABLE.items() if category.within is None)
"""Those of a breakdown of a peak."""
STACKED = tuple(sorted(TABLE, key=lambda name: TABLE[name].stack))
"""From the bottom to the top of a picture over time: bands above what stays move little."""
