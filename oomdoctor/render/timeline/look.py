"""How both pictures look: the colors of the categories."""

from __future__ import annotations

from oomdoctor.records.facts.categories import TABLE
from oomdoctor.records.inside.categories import BlockCategory
from oomdoctor.records.inside.timeline import CATEGORIES

LIGHT: dict[BlockCategory, tuple[int, int, int]] = {name: TABLE[name].hsl for name in CATEGORIES}
"""Hue, saturation and lightness of each category on white."""


def rgb(hsl: tuple[int, int, int]) -> tuple[float, float, float]:
    """A color as red, green and blue from 0 to 1."""
    import colorsys

    hue, saturation, lightness = hsl
    return colorsys.hls_to_rgb(hue / 360, lightness / 100, saturation / 100)
