"""The colors of charts by role, for a light and a dark page, and the font.

The colors of categories stay apart for people who do not see red, green or blue well; neighbors in
a bar also have a gap between them, and what the allocator only caches is hatched.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Literal

from oomdoctor.records.facts.categories import BREAKDOWN, TABLE

Role = str
"""A category of memory, or a key of `COLORS` beside them."""


@dataclass(frozen=True, slots=True)
class Color:
    """A color on a light and on a dark page."""

    light: str
    dark: str


COLORS: dict[Role, Color] = {
    **{name: Color(TABLE[name].light, TABLE[name].dark) for name in BREAKDOWN},
    "reserved": Color("#bcc5d1", "#5d6774"),
    "context": Color("#3a424e", "#98a3b1"),
    "whole": Color("#7e93ad", "#8398b3"),
    "full": Color("#2866b0", "#5c98e2"),
    "lora": Color("#b25c00", "#e39a2d"),
    "qlora": Color("#12876f", "#2bb899"),
    "ink": Color("#1b222c", "#e8ecf1"),
    "faint": Color("#55606e", "#a6b0bd"),
    "line": Color("#d3d9e0", "#3a434f"),
    "page": Color("#ffffff", "#14181e"),
    "alarm": Color("#b3201a", "#ff8278"),
    "near": Color("#8a5a00", "#e3b341"),
}
FONT = "DejaVu Sans"  # whose widths matplotlib knows; a page uses its own font, which is narrower
TEXT = 13.0  # points; the pictures are drawn at 72 dots per inch, so they are pixels too
SMALL = 12.0


Palette = Literal["roles", "light", "dark"]
_palette: ContextVar[Palette] = ContextVar("palette", default="roles")


@contextmanager
def palette(name: Palette) -> Iterator[None]:
    """What `ink` gives inside: colors of a page, or a placeholder for each role."""
    token = _palette.set(name)
    try:
        yield
    finally:
        _palette.reset(token)


def ink(role: Role) -> str:
    """The color to draw a role with."""
    name = _palette.get()
    if name == "roles":
        return f"#fe{list(COLORS).index(role):02x}fe"
    return COLORS[role].dark if name == "dark" else COLORS[role].light
