"""The timeline as a picture, drawn with matplotlib: an optional package, asked for by name.

Its areas are moments as columns, and in them the bands and blocks with their heights. The scripts
of the page draw the same; see `columns.js`.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

from oomdoctor.records.job.measurement import CATEGORY_WORDS
from oomdoctor.records.report.timeline import CATEGORIES, Timeline, TimelineDevice
from oomdoctor.render.blocks import Grid
from oomdoctor.render.charts import Chart, Size, drawing
from oomdoctor.render.charts import axes as look
from oomdoctor.render.charts.axes import Palette, ink
from oomdoctor.render.snapshot.timeline_page import LIGHT, rgb
from oomdoctor.units import format_bytes

Outline = list[tuple[float, float]]


@dataclass(frozen=True, slots=True)
class Columns:
    """Each column shows one moment: of all that fall on it, the one with the most bytes.

    `edges` are places on the x axis, which counts events; there is one more than there are columns.
    `places` has each moment, and the end.
    """

    moments: list[int]
    edges: list[float]
    reserved: list[int]
    places: list[float]


@dataclass(frozen=True, slots=True)
class Area:
    """A band of a category, or one block of it."""

    category: int
    block: int | None
    outline: Outline


def columns_of(device: TimelineDevice, most: int) -> Columns:
    """At most `most` columns of the whole history."""
    last = device.event[-1]
    end = last + max(1.0, last / 100)
    places = [*map(float, device.event), end]
    moments: list[int] = []
    edges: list[float] = []
    reserved: list[int] = []
    latest = -1
    for moment, place in enumerate(places[:-1]):
        column = int(place / end * most)
        if column == latest:
            if device.allocated[moment] > device.allocated[moments[-1]]:
                moments[-1] = moment
            reserved[-1] = max(reserved[-1], device.reserved[moment])
            continue
        moments.append(moment)
        edges.append(place)
        reserved.append(device.reserved[moment])
        latest = column
    return Columns(moments, [*edges, end], reserved, places)


def areas(device: TimelineDevice, columns: Columns, least_bytes: float) -> list[Area]:
    """The bands, and the blocks of at least `least_bytes`, from the bottom to the top."""
    drawn: list[Area] = []
    floor = [0] * len(columns.moments)
    for category in range(len(CATEGORIES)):
        lower = [f + r for f, r in zip(floor, _rest(device, columns, category), strict=True)]
        blocks = []
        for block in (n for n, c in enumerate(device.blocks.category) if c == category):
            first = bisect_left(columns.moments, device.blocks.born[block])
            after = bisect_left(columns.moments, device.blocks.died[block])
            size = device.blocks.size[block]
            if first < after and size >= least_bytes:
                upper = [below + size for below in lower[first:after]]
                outline = _outline(columns.edges[first : after + 1], lower[first:after], upper)
                blocks.append(Area(category, block, outline))
            for column in range(first, after):
                lower[column] += size
        if lower != floor:
            drawn.append(Area(category, None, _outline(columns.edges, floor, lower)))
            drawn += blocks
        floor = lower
    return drawn


def _rest(device: TimelineDevice, columns: Columns, category: int) -> list[int]:
    sums = device.rest.get(CATEGORIES[category])
    return [0 if sums is None else sums[moment] for moment in columns.moments]


def _outline(edges: list[float], lower: list[int], upper: list[int]) -> Outline:
    backwards = list(_steps(edges, lower))[::-1]
    return [*_steps(edges, upper), *backwards]


def _steps(edges: list[float], heights: list[int]) -> Iterator[tuple[float, float]]:
    """The corners of a line with steps, without those on a level line."""
    for at, height in enumerate(heights):
        if at == 0 or heights[at - 1] != height:
            yield edges[at], height
        if at + 1 == len(heights) or heights[at + 1] != height:
            yield edges[at + 1], height


_HEIGHT, _SIDE, _FOOT = 460, 64, 52  # pixels of a device, left of its axes, and below them
_HEAD: dict[Size, int] = {"wide": 78, "narrow": 140}
_LEGEND_COLUMNS: dict[Size, int] = {"wide": 5, "narrow": 2}
_COLUMNS = 1200
_MOST_STEPS = 60  # more lines than that would hide the picture
_WITHOUT = "run `pip install matplotlib`, or write a page with --html timeline.html"
_SHADES = (0.0, 0.08, -0.06, 0.14, -0.1)


def need_picture() -> None:
    """Check that the picture can be drawn.

    Raises:
        OomDoctorError: matplotlib is missing (exit 5).
    """
    drawing.need_matplotlib("--png", _WITHOUT)


def png(timeline: Timeline, size: Size = "wide", colors: Palette = "light") -> bytes:
    """The picture of all devices, one below the other.

    Raises:
        OomDoctorError: matplotlib is missing (exit 5).
    """
    need_picture()
    by = f" ({timeline.written_by})" if timeline.written_by is not None else ""
    height = _HEIGHT * max(1, len(timeline.devices))
    says, grid = "Allocated memory from event to event.", Grid((), ())
    draw = partial(_draw, timeline.devices)
    title = f"{timeline.source}{by}"
    chart = Chart("timeline", title, says, grid, draw, lambda _: height)
    return drawing.png(chart, size, colors)


def _draw(devices: Sequence[TimelineDevice], figure: Any, size: Size) -> None:
    parts = figure.subfigures(max(1, len(devices)), 1, squeeze=False)[:, 0]
    for part, device in zip(parts, devices, strict=False):
        _draw_device(part, device, size, named=len(devices) > 1)


def _draw_device(figure: Any, device: TimelineDevice, size: Size, *, named: bool) -> None:
    columns, top = columns_of(device, _COLUMNS), _top(device)
    axes = look.axes_in(figure, size, _HEIGHT, left=_SIDE, right=30, head=_HEAD[size], foot=_FOOT)
    _fill(axes, device, columns, top)
    edges = columns.edges
    axes.stairs(
        columns.reserved, edges, baseline=None, color=ink("ink"), linewidth=1.6, label="reserved"
    )
    if device.limit_bytes is not None:
        label = f"limit {format_bytes(device.limit_bytes)}"
        axes.axhline(device.limit_bytes, color=ink("alarm"), linestyle="--", label=label)
    axes.set_xlim(edges[0], edges[-1])
    axes.set_ylim(0, top * 1.1)
    _mark(axes, device, columns, top)
    look.byte_axis(axes, "y")
    axes.xaxis.set_major_formatter(lambda value, _: f"{int(value):,}")
    axes.locator_params(axis="x", nbins=7 if size == "wide" else 4)
    look.frame(axes, grid="y", label="events" + f" of GPU {device.index}" * named)
    entries = list(zip(*axes.get_legend_handles_labels(), strict=True))
    look.legend(figure, entries, _LEGEND_COLUMNS[size], _HEIGHT)


def _top(device: TimelineDevice) -> int:
    top = max(max(device.allocated), max(device.reserved), 1)
    limit = device.limit_bytes
    return limit if limit is not None and top < limit <= 1.5 * top else top


def _fill(axes: Any, device: TimelineDevice, columns: Columns, top: int) -> None:
    """The bands, and in them the blocks that are high enough to see."""
    from matplotlib.collections import PolyCollection

    least = top / (_HEIGHT * 1.6)
    drawn = areas(device, columns, least)
    for number, category in enumerate(CATEGORIES):
        color = rgb(LIGHT[category])
        bands = [area.outline for area in drawn if area.category == number and area.block is None]
        if not bands:
            continue
        axes.add_collection(PolyCollection(bands, facecolors=[color], linewidths=0))
        blocks = [area for area in drawn if area.category == number and area.block is not None]
        numbers = [area.block for area in blocks if area.block is not None]
        sizes = [device.blocks.size[block] for block in numbers]
        axes.add_collection(
            PolyCollection(
                [area.outline for area in blocks],
                facecolors=[_shaded(color, device.blocks.stack[block]) for block in numbers],
                edgecolors=(1, 1, 1, 0.5),
                linewidths=[0.4 if size > 4 * least else 0 for size in sizes],
            )
        )
        axes.fill_between([], [], [], color=color, label=CATEGORY_WORDS[category])  # for the legend


def _shaded(color: tuple[float, float, float], stack: int) -> tuple[float, ...]:
    by = _SHADES[(stack + 1) % len(_SHADES)]
    target = 1.0 if by > 0 else 0.0
    return tuple(part + (target - part) * abs(by) for part in color)


def _mark(axes: Any, device: TimelineDevice, columns: Columns, top: int) -> None:
    """The peak, the optimizer steps and the requests that failed."""
    if device.traced:
        _mark_peak(axes, device, columns)
    ends = [columns.places[after] for _, after in device.steps]
    above = axes.get_xaxis_transform()
    for number, (start, end) in enumerate(zip([columns.edges[0], *ends], ends, strict=False), 1):
        if len(ends) > _MOST_STEPS:
            break
        axes.axvline(end, color=ink("faint"), linewidth=0.6, alpha=0.6)
        text, place = f"step {number}" if len(ends) < 9 else f"{number}", (start + end) / 2
        look.note(axes, text, (place, 1.01), xycoords=above, ha="center", color=ink("faint"))
    for failure in device.failures:
        axes.axvline(columns.places[failure.moment], color=ink("alarm"), linewidth=1.2)
    if device.failures:
        last = device.failures[-1]
        place = columns.places[last.moment]
        side, away = ("right", -4) if place > columns.edges[-1] / 2 else ("left", 4)
        text = f"out of memory: tried to allocate {format_bytes(last.requested_bytes)}"
        at = place, top * 1.08
        look.note(axes, text, at, (away, 0), ha=side, va="top", color=ink("alarm"))


def _mark_peak(axes: Any, device: TimelineDevice, columns: Columns) -> None:
    at, height = columns.places[device.peak], device.allocated[device.peak]
    side = "right" if at > columns.edges[-1] * 0.85 else "center" if at else "left"
    box = {"fc": ink("page"), "ec": "none", "alpha": 0.75, "pad": 1}
    look.note(axes, f"peak {format_bytes(height)}", (at, height), (0, 7), ha=side, bbox=box)
    axes.plot([at], [height], marker="v", color=ink("ink"), markersize=5, clip_on=False)
