"""Charts of a report, one module a chart: what each shows, and how matplotlib draws it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

if TYPE_CHECKING:
    from oomdoctor.render.blocks import Grid

CHARTS = ("frontier", "memory", "step", "predicted", "cards", "sweep", "time", "run", "request")
"""The names of charts on the command line; the first is drawn unless another is asked for."""
Size = Literal["wide", "narrow"]
WIDTHS: dict[Size, int] = {"wide": 920, "narrow": 350}
"""The width of a chart in pixels: on a desktop or on paper, and on a phone."""


@dataclass(frozen=True, slots=True)
class Chart:
    """A chart that can be drawn.

    `name` is that of `--chart`. `says` tells in words what can be seen. `grid` has the numbers.
    `draw` draws on a figure of matplotlib, and `height` is that of the figure, in pixels. `about`
    tells several charts of the same name apart, and `folded` ones are not shown at first.
    """

    name: str
    title: str
    says: str
    grid: Grid
    draw: Callable[[Any, Size], None]
    height: Callable[[Size], int]
    about: str = ""
    folded: bool = False
