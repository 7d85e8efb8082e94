"""Memory of the fullest GPU of a run, from the first allocation to the last."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from itertools import pairwise
from typing import Any

from oomdoctor.records.report.report import Report
from oomdoctor.records.report.run import MemoryPoint, fullest
from oomdoctor.render.blocks import Column, Grid, table_of
from oomdoctor.render.charts import Chart, Size
from oomdoctor.render.charts import axes as look
from oomdoctor.render.charts.axes import ink
from oomdoctor.units import format_bytes, format_seconds

_HEIGHTS: dict[Size, int] = {"wide": 340, "narrow": 320}
_MOST_STEPS: dict[Size, int] = {"wide": 24, "narrow": 8}
_ROOM = 1.05  # above the highest point


def run_chart(report: Report) -> Chart | None:
    """The chart, if memory was followed."""
    rank = fullest(report.ranks)
    if rank is None or len(rank.memory) < 2:
        return None
    points, device = rank.memory, report.device
    limit = device.usable_bytes if device is not None else None
    timed = device is None or device.kind == "real"
    allocated = max(point.allocated_bytes for point in points)
    reserved = max(point.reserved_bytes for point in points)
    says = f"Tensors took at most {format_bytes(allocated)}, and the allocator reserved at most "
    says += format_bytes(reserved)
    if limit is not None:
        says += f"; the GPU has {format_bytes(limit)} for it"
    return Chart(
        "run",
        "Memory over time",
        f"{says}.",
        _grid(points),
        partial(_draw, points, limit, timed),
        _HEIGHTS.__getitem__,
        about=f"rank {rank.rank}" if len(report.ranks) > 1 else "",
    )


def _grid(points: Sequence[MemoryPoint]) -> Grid:
    """The highest point between the ends of two steps."""
    highest: dict[int, MemoryPoint] = {}
    for point in points:
        before = highest.get(point.step, point)
        highest[point.step] = max(before, point, key=lambda each: each.allocated_bytes)
    return table_of(
        highest.values(),
        (
            (Column("steps that ended", right=True), lambda point: f"{point.step:,}"),
            (Column("allocated", right=True), lambda point: format_bytes(point.allocated_bytes)),
            (Column("reserved", right=True), lambda point: format_bytes(point.reserved_bytes)),
        ),
    )


def _draw(
    points: Sequence[MemoryPoint], limit: int | None, timed: bool, figure: Any, size: Size
) -> None:
    """Allocated bytes as an area, reserved ones as a line above it."""
    height = _HEIGHTS[size]
    axes = look.axes_in(figure, size, height, left=64, right=24, head=34, foot=52)
    # On an emulated GPU times say only the order, so points are evenly apart.
    places = [point.at_s if timed else float(at) for at, point in enumerate(points)]
    allocated = [point.allocated_bytes for point in points]
    reserved = [point.reserved_bytes for point in points]
    axes.set_xlim(places[0], max(places[-1], places[0] + 1e-9))
    axes.set_ylim(0, _ROOM * max([limit or 0, *reserved]))
    axes.fill_between(places, allocated, color=ink("whole"), linewidth=0)
    axes.plot(places, reserved, color=ink("reserved"), linewidth=2)
    if limit is not None:
        axes.axhline(limit, color=ink("alarm"), linewidth=1.6)
    ends = [
        (place, after.step)
        for place, (before, after) in zip(places[1:], pairwise(points), strict=True)
        if after.step > before.step
    ]
    shown = ends[:: max(1, -(-len(ends) // _MOST_STEPS[size]))]
    axes.set_xticks([place for place, _ in shown], [f"{step}" for _, step in shown])
    look.byte_axis(axes, "y")
    seconds = f", over {format_seconds(places[-1] - places[0])}" if timed else ""
    look.frame(axes, grid="both", label=f"optimizer steps that ended{seconds}")
    entries = [
        (look.patch("whole"), "allocated"),
        (look.handle("reserved", "", linestyle="-", linewidth=2), "reserved"),
    ]
    if limit is not None:
        of_gpu = look.handle("alarm", "", linestyle="-", linewidth=1.6)
        entries.append((of_gpu, f"{format_bytes(limit)} available"))
    look.legend(figure, entries, 3, height)
