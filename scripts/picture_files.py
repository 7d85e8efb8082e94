"""The pictures of README.md and docs/: each for wide and narrow, light and dark screens.

NAME.png is the one that Markdown shows. The site (docs/conf.py) shows the one that fits the screen.
"""

from __future__ import annotations

import io
from collections.abc import Callable
from pathlib import Path

from PIL import Image

from oomdoctor.render.charts import Size
from oomdoctor.render.charts.axes import Palette

ROOT = Path(__file__).parents[1]
IMAGES = ROOT / "docs" / "images"
COLORS = 255  # of a picture; its text stays sharp
# What is behind the name of a file, and how the picture in it is drawn.
VARIANTS: dict[str, tuple[Size, Palette]] = {
    "": ("wide", "light"),
    "-dark": ("wide", "dark"),
    "-phone": ("narrow", "light"),
    "-phone-dark": ("narrow", "dark"),
}


def keep_all(name: str, draw: Callable[[Size, Palette], bytes]) -> None:
    """Draw and write the four pictures of a name."""
    for ending, (size, colors) in VARIANTS.items():
        keep(f"{name}{ending}", draw(size, colors))


def keep(name: str, data: bytes) -> None:
    """Write a picture with few colors, which makes it small."""
    target = IMAGES / f"{name}.png"
    target.write_bytes(small(data))
    print(f"{target.relative_to(ROOT)} {target.stat().st_size:,} bytes")


def small(data: bytes) -> bytes:
    """A PNG with at most `COLORS` colors."""
    image = Image.open(io.BytesIO(data)).convert("RGB")
    few = image.quantize(COLORS, Image.Quantize.MAXCOVERAGE, dither=Image.Dither.NONE)
    target = io.BytesIO()
    few.save(target, format="PNG", optimize=True)
    return target.getvalue()
