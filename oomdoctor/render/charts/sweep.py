"""How the peak of each rung grows along a sweep, one chart per card.

Both axes are linear: where memory grows linearly, the line is straight.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from itertools import pairwise
from typing import Any

from oomdoctor.records.report.plan import CardPlan, SweepAnswer, SweepLine, SweptPeak
from oomdoctor.records.report.report import Report
from oomdoctor.render.blocks import Column, Grid, table_of
from oomdoctor.render.charts import Chart, Size
from oomdoctor.render.charts import axes as look
from oomdoctor.render.charts.axes import ink
from oomdoctor.render.text import one_line
from oomdoctor.render.words import SWEPT_WORDS, card_name
from oomdoctor.units import DASH, format_bytes

_ROLES: tuple[look.Role, ...] = (
    "full", "lora", "qlora", "activations", "logits", "optimizer", "context", "whole",
)  # fmt: skip
_MARKERS = "osD^vPX*"
_MOST_CARDS = 6
_BEYOND = 1.6
_MARGIN = 1.05
_HEIGHTS: dict[Size, int] = {"wide": 400, "narrow": 360}


def sweep_charts(report: Report) -> list[Chart]:
    """A chart for each card of a sweep; the first is open."""
    sweep = report.sweep
    if sweep is None or len(sweep.values) < 2:
        return []
    charts: list[Chart] = []
    for card in report.cards[:_MOST_CARDS]:
        own = [line for line in sweep.lines if line.card == card.name]
        lines = [line for line in own if sum(height_of(p) is not None for p in line.peaks) > 1]
        if lines:
            charts.append(_chart(sweep, card, lines, folded=bool(charts)))
    return charts


def height_of(peak: SweptPeak) -> int | None:
    """The peak, or the lower bound where only that is known."""
    return peak.peak_device_bytes if peak.peak_device_bytes is not None else peak.least_bytes


def top_of(peaks: Sequence[int], usable: int) -> float:
    """Where the chart ends: well above what is usable, and not through the marker of a peak."""
    far = usable * _BEYOND
    shown = [peak for peak in peaks if peak <= far * _MARGIN]
    top = _MARGIN * max([usable, *shown])
    return top if len(shown) == len(peaks) else max(top, far)


def end_of(lines: Sequence[SweepLine], values: Sequence[int], top: float) -> int:
    """The last value of the chart: the first one at which no line is below its top any more."""
    for value in values[1:]:
        heights = [height_of(p) for line in lines for p in line.peaks if p.value == value]
        if all(height is not None and height > top for height in heights):
            return value
    return values[-1]


def free_place(lines: Sequence[SweepLine], end: int, limit: int, top: float, share: float) -> float:
    """Where a text above the limit is crossed by the fewest lines, as a share of the axis.

    The text takes `share` of the axis, and a twelfth of the height.
    """

    def crossing(start: float) -> int:
        ranks = [start + share * part / 8 for part in range(9)]
        heights = [[height_at(line, rank * end) for rank in ranks] for line in lines]
        above = limit + top / 12
        return sum(any(h is not None and limit <= h <= above for h in each) for each in heights)

    return min((part / 20 for part in range(21) if part / 20 + share <= 1), key=crossing, default=0)


def height_at(line: SweepLine, value: float) -> float | None:
    """The height of a line between two of its peaks; None before the first and after the last."""
    points = [(peak.value, tall) for peak in line.peaks if (tall := height_of(peak))]
    for (left, low), (right, high) in pairwise(points):
        if left <= value <= right:
            return low + (high - low) * (value - left) / (right - left)
    return None


def even_ticks(end: int, most: int) -> list[int]:
    """Values from 0 to `end` at even distances, at most so many besides 0, a power of two apart."""
    step = 1
    while end > most * step:
        step *= 2
    return list(range(0, end + 1, step))


def _chart(sweep: SweepAnswer, card: CardPlan, lines: list[SweepLine], *, folded: bool) -> Chart:
    word = SWEPT_WORDS[sweep.key]
    name = card_name(card.name)
    reach = [line for line in lines if line.largest_fitting is not None]
    far = max(reach, key=lambda line: line.largest_fitting or 0, default=None)
    says = f"The peak at each {word} on {name}, with {format_bytes(card.usable_bytes)} usable."
    if far is not None:
        says += f" {one_line(far.label)} gets the furthest: {far.largest_fitting:,}."
    return Chart(
        "sweep",
        f"Peak by {word}",
        says,
        _grid(sweep, lines),
        partial(_draw, sweep, card, lines),
        _HEIGHTS.__getitem__,
        about=name,
        folded=folded,
    )


def _grid(sweep: SweepAnswer, lines: Sequence[SweepLine]) -> Grid:
    cells = ((Column(f"{value:,}", right=True), partial(_cell, value)) for value in sweep.values)
    return table_of(lines, ((Column("config"), lambda line: one_line(line.label)), *cells))


def _cell(value: int, line: SweepLine) -> str:
    peak = next((peak for peak in line.peaks if peak.value == value), None)
    height = None if peak is None else height_of(peak)
    if peak is None or height is None:
        return DASH
    at_least = "at least " if peak.peak_device_bytes is None else ""
    return f"{at_least}{format_bytes(height)}{_verdict(peak)}"


def _verdict(peak: SweptPeak) -> str:
    if peak.borderline:
        return ", borderline"
    return "" if peak.fits else ", too large"


def _draw(
    sweep: SweepAnswer, card: CardPlan, lines: Sequence[SweepLine], figure: Any, size: Size
) -> None:
    height, columns = _HEIGHTS[size], 3 if size == "wide" else 1
    shown = lines[: len(_ROLES)]
    head = 21 * -(-len(shown) // columns) + 30
    axes = look.axes_in(figure, size, height, left=64, right=30, head=head, foot=52)
    heights = [height_of(peak) or 0 for line in shown for peak in line.peaks]
    top = top_of(heights, card.usable_bytes)
    end = end_of(shown, sweep.values, top)
    axes.set_xlim(0, end * 1.02)
    axes.set_ylim(0, top)
    entries = []
    for line, role, marker in zip(shown, _ROLES, _MARKERS, strict=False):
        points = [(peak.value, tall) for peak in line.peaks if (tall := height_of(peak))]
        line_style = {"linewidth": 2, "markersize": 6}
        axes.plot([value for value, _ in points], [tall for _, tall in points], color=ink(role),
                  marker=marker, markeredgecolor=ink("page"), **line_style)  # fmt: skip
        mark = look.handle(role, marker, linestyle="-", **line_style)
        entries.append((mark, look.elided(one_line(line.label), 34)))
    axes.axhline(card.usable_bytes, color=ink("alarm"), linewidth=1.6)
    usable = f"{format_bytes(card.usable_bytes)} usable"
    share = len(usable) * look.SMALL * 0.62 / axes.bbox.width
    place = (free_place(shown, end, card.usable_bytes, top, share) * end, card.usable_bytes)
    look.note(axes, usable, place, (2, 4), color=ink("alarm"), va="bottom")
    look.byte_axis(axes, "y")
    ticks = even_ticks(end, 8 if size == "wide" else 4)
    axes.set_xticks(ticks, [f"{value:,}" for value in ticks])
    look.frame(axes, grid="y", label=SWEPT_WORDS[sweep.key])
    look.legend(figure, entries, columns, height)
