"""The names beside the points of the chart, where no text covers another."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from oomdoctor.render.charts.axes import elided
from oomdoctor.render.charts.chart import Size
from oomdoctor.render.charts.frontier.points import Point
from oomdoctor.render.charts.look import SMALL, ink

_MOST_LABELS = 12


def name_points(
    figure: Any,
    axes: Any,
    points: Sequence[Point],
    best: Sequence[Point],
    usable: int | None,
    size: Size,
) -> None:
    """Write the names of the chosen points, those of the front first."""
    figure.canvas.draw()
    renderer = figure.canvas.get_renderer()
    inside = axes.get_window_extent(renderer)
    taken = [_box(axes, point) for point in points if point.chosen]
    if usable is not None:
        taken.append(_line_box(axes, usable))
    order = [p for p in points if p.chosen and p in best]
    order += [p for p in points if p.chosen and p not in best]
    for point in order[: _MOST_LABELS if size == "wide" else 5]:
        text = elided(point.label, 34 if size == "wide" else 20)
        for dx, dy, ha, va in _PLACES:
            note = axes.annotate(
                text, (point.memory, point.speed), (dx, dy), textcoords="offset points",
                ha=ha, va=va, fontsize=SMALL, color=ink("ink"), zorder=4,
            )  # fmt: skip
            box = note.get_window_extent(renderer)
            free = not any(box.overlaps(other) for other in taken)
            across = inside.x0 <= box.x0 and box.x1 <= inside.x1
            if free and across and inside.y0 <= box.y0 and box.y1 <= inside.y1 - 18:
                taken.append(box)
                break
            note.remove()


# Right below a point there is no line: that of the front goes to the right, and then up.
_PLACES = (
    (8, -7, "left", "top"),
    (-8, 7, "right", "bottom"),
    (-9, 0, "right", "center"),
    (9, 0, "left", "center"),
    (8, 7, "left", "bottom"),
    (-8, -7, "right", "top"),
    (0, -9, "center", "top"),
    (0, 9, "center", "bottom"),
)


def _line_box(axes: Any, usable: int) -> Any:
    from matplotlib.transforms import Bbox

    x, box = axes.transData.transform((usable, 0))[0], axes.bbox
    return Bbox.from_extents(x - 2, box.y0, x + 2, box.y1)


def _box(axes: Any, point: Point) -> Any:
    from matplotlib.transforms import Bbox

    x, y = axes.transData.transform((point.memory, point.speed))
    return Bbox.from_extents(x - 6, y - 6, x + 6, y + 6)
