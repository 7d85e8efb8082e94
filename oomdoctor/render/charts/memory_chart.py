"""The peak of each rung as a bar of its parts, beside what it may use."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any

from oomdoctor.records.report.report import Budget, Report
from oomdoctor.render.blocks import Column, Grid, table_of
from oomdoctor.render.charts import Chart, Size
from oomdoctor.render.charts import axes as look
from oomdoctor.render.charts.axes import ink
from oomdoctor.render.charts.parts import (
    PART_WORDS,
    Peak,
    least_at_one,
    part_cells,
    parts_in,
    peaks_of,
)
from oomdoctor.render.text import one_line
from oomdoctor.render.words import counted
from oomdoctor.units import DASH, format_bytes

_BEYOND = 1.5  # a bar ends there, in multiples of what is usable
_FAR = 3  # a limit that is so many times the highest peak is not drawn
MOST = 28  # bars; a chart fits on a sheet of paper
_ROW: dict[Size, int] = {"wide": 30, "narrow": 46}
_LEGEND_LINE = 21
_AXIS = 46  # pixels below the bars
_LEGEND_COLUMNS: dict[Size, int] = {"wide": 5, "narrow": 2}

Limit = tuple[int, str]
"""What must not be exceeded, in bytes, and the word for it."""


def memory_chart(report: Report) -> Chart | None:
    """The chart, if a peak is known."""
    peaks = peaks_of(report)
    if not peaks:
        return None
    drawn, budget = peaks[:MOST], report.budget
    limit = None if budget is None else (budget.usable_bytes, "usable")
    return Chart(
        "memory",
        "Memory at the peak",
        _says(peaks, budget),
        _grid(peaks),
        partial(draw_peaks, drawn, limit),
        partial(height_of, drawn),
    )


def _says(peaks: Sequence[Peak], budget: Budget | None) -> str:
    text = f"Peak memory of {counted(len(peaks), 'configuration')} by category"
    if budget is not None:
        text += f"; {format_bytes(budget.usable_bytes)} is usable"
    if len(peaks) > MOST:
        text += f"; the first {MOST} are drawn"
    several = len({peak.micro_batch_size for peak in peaks}) > 1
    own = "Each bar is at its own micro-batch size (mb)." if several else None
    return " ".join(filter(None, (f"{text}.", own, least_at_one(peaks))))


def _grid(peaks: Sequence[Peak]) -> Grid:
    return table_of(
        peaks,
        (
            (Column("config"), lambda peak: peak.label + " (predicted)" * peak.expected),
            (Column("micro-batch", right=True), lambda peak: str(peak.micro_batch_size or DASH)),
            *part_cells(peaks),
            (Column("peak", right=True), lambda peak: format_bytes(peak.total)),
            (Column("peak at micro-batch 1", right=True), lambda peak: format_bytes(peak.at_one)),
        ),
    )


def _legend(peaks: Sequence[Peak]) -> list[look.Entry]:
    """The parts, and the mark at the peak at micro-batch size 1."""
    entries = [(look.patch(role), PART_WORDS[role]) for role in parts_in(peaks)]
    if any(peak.is_compared for peak in peaks):
        entries.append((look.handle("page", **_mark()), "at micro-batch 1"))
    return entries


def _mark() -> dict[str, Any]:
    return {"marker": "D", "markersize": 7, "markeredgecolor": ink("ink"), "markeredgewidth": 1.2}


def _head(peaks: Sequence[Peak], size: Size) -> int:
    lines = -(-len(_legend(peaks)) // _LEGEND_COLUMNS[size])
    return _LEGEND_LINE * lines + 30


def height_of(peaks: Sequence[Peak], size: Size) -> int:
    """The height of the chart of some peaks."""
    return _head(peaks, size) + _ROW[size] * len(peaks) + _AXIS


def draw_peaks(peaks: Sequence[Peak], limit: Limit | None, figure: Any, size: Size) -> None:
    """Draw a bar for each peak, and the limit as a line across them."""
    height, head = height_of(peaks, size), _head(peaks, size)
    names, top = [_name(peak, "wide") for peak in peaks], _top(peaks, limit)
    right = look.END[size]
    axes = look.rows_in(figure, size, height, names, top, right=right, head=head, foot=_AXIS)
    _bars(axes, peaks, top, size)
    look.byte_axis(axes, "x")
    _mark_size_one(axes, peaks, size)
    _label(axes, peaks, top, size)
    if limit is not None and limit[0] < top:
        _mark_limit(axes, limit, top)
    look.legend(figure, _legend(peaks), _LEGEND_COLUMNS[size], height)


def _name(peak: Peak, size: Size) -> str:
    """The label with the micro-batch size: `lora-r16+ckpt, mb 4`."""
    about = f", {peak.size_words}" if peak.size_words else ""
    return look.elided(one_line(peak.label), look.LABELS[size] - len(about)) + about


def _top(peaks: Sequence[Peak], limit: Limit | None) -> float:
    highest = max(peak.total for peak in peaks)
    if limit is None or limit[0] > highest * _FAR:
        return highest * 1.04
    fitting = max((peak.total for peak in peaks if peak.fits), default=0)
    return min(max(highest * 1.04, limit[0] * 1.12), max(limit[0] * _BEYOND, fitting * 1.04))


def _bars(axes: Any, peaks: Sequence[Peak], top: float, size: Size) -> None:
    ends = [0.0] * len(peaks)
    for role in parts_in(peaks):
        sizes = [dict(peak.parts).get(role, 0) for peak in peaks]
        drawn = [max(0.0, min(s, top - end)) for s, end in zip(sizes, ends, strict=True)]
        axes.barh(
            [number + look.SHIFT[size] for number in range(len(peaks))],
            drawn,
            left=ends,
            height=0.62 if size == "wide" else 0.4,
            color=ink(role),
            edgecolor=ink("page"),
            linewidth=0.8,
            hatch=look.hatch(role),
        )
        ends = [end + s for end, s in zip(ends, drawn, strict=True)]


def _mark_size_one(axes: Any, peaks: Sequence[Peak], size: Size) -> None:
    """A mark where the peak at micro-batch size 1 is, which compares rungs like with like."""
    marked = [(number, peak.at_one) for number, peak in enumerate(peaks) if peak.is_compared]
    axes.plot([at for _, at in marked], [number + look.SHIFT[size] for number, _ in marked],
              linestyle="none", color=ink("page"), zorder=3, **_mark())  # fmt: skip


def _label(axes: Any, peaks: Sequence[Peak], top: float, size: Size) -> None:
    over = {"bbox": {"facecolor": ink("page"), "edgecolor": "none", "alpha": 0.85, "pad": 1}}
    for number, peak in enumerate(peaks):
        color = ink("near" if peak.borderline else "ink" if peak.fits else "alarm")
        text = "~" * peak.expected + format_bytes(peak.total) + " →" * (peak.total > top)
        look.name_row(axes, number, _name(peak, size), size)
        narrow = {"zorder": 4, **over} if size == "narrow" else {}
        look.end_row(axes, number, text, top, size, color=color, **narrow)


def _mark_limit(axes: Any, limit: Limit, top: float) -> None:
    at, word = limit
    axes.axvline(at, color=ink("alarm"), linewidth=1.6, zorder=3)
    side = "right" if at > top * 0.6 else "left" if at < top * 0.2 else "center"
    look.note(axes, f"{format_bytes(at)} {word}", (at, 1), (0, 4), ha=side, va="bottom",
              xycoords=("data", "axes fraction"), color=ink("alarm"))  # fmt: skip
