"""How both pictures look: the colors of the categories."""

from __future__ import annotations

from oomdoctor.records.inside.categories import BlockCategory

LIGHT: dict[BlockCategory, tuple[int, int, int]] = {
    "weights": (212, 52, 56),
    "gradients": (168, 48, 42),
    "optimizer": (35, 78, 55),
    "activations": (322, 38, 62),
    "logits": (10, 68, 56),
    "temporary": (52, 70, 56),
    "other": (220, 8, 62),
}
"""Hue, saturation and lightness of each category on white."""


def rgb(hsl: tuple[int, int, int]) -> tuple[float, float, float]:
    """A color as red, green and blue from 0 to 1."""
    import colorsys

    hue, saturation, lightness = hsl
    return colorsys.hls_to_rgb(hue / 360, lightness / 100, saturation / 100)
