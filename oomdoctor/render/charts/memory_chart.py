"""The peak of each rung as a bar of its parts, beside what it may use."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import partial
from typing import Any

from oomdoctor.records.report.report import Budget, Report
from oomdoctor.render.blocks import Column, Grid
from oomdoctor.render.charts import WIDTHS, Chart, Size
from oomdoctor.render.charts.axes import (
    SMALL,
    TEXT,
    Role,
    byte_ticks,
    elided,
    frame,
    ink,
    legend,
    patch,
    tick_text,
)
from oomdoctor.render.charts.parts import (
    PART_WORDS,
    Peak,
    least_at_one,
    parts_in,
    peaks_of,
    sizes_differ,
)
from oomdoctor.render.text import one_line
from oomdoctor.render.words import counted
from oomdoctor.units import DASH, format_bytes

_BEYOND = 1.5  # a bar ends there, in multiples of what is usable
_FAR = 3  # a limit that is so many times the highest peak is not drawn
_MOST = 28  # bars; a chart fits on a sheet of paper
_LABELS: dict[Size, int] = {"wide": 34, "narrow": 30}
_LEGEND_LINE = 21
_AXIS = 46  # pixels below the bars
_LEGEND_COLUMNS: dict[Size, int] = {"wide": 5, "narrow": 2}


def memory_chart(report: Report) -> Chart | None:
    """The chart, if a peak is known."""
    peaks = peaks_of(report)
    if not peaks:
        return None
    drawn = peaks[:_MOST]
    return Chart(
        "memory",
        "Memory at the peak",
        _says(peaks, report.budget),
        _grid(peaks),
        partial(_draw, drawn, report.budget),
        partial(_height, drawn),
    )


def _says(peaks: Sequence[Peak], budget: Budget | None) -> str:
    text = f"Peak memory of {counted(len(peaks), 'rung')} by category"
    if budget is not None:
        text += f"; {format_bytes(budget.usable_bytes)} is usable"
    if len(peaks) > _MOST:
        text += f"; the first {_MOST} are drawn"
    return " ".join((f"{text}.", *_at_one_size(peaks)))


def _at_one_size(peaks: Sequence[Peak]) -> Iterator[str]:
    """What compares the rungs: their peaks at micro-batch size 1."""
    if sizes_differ(peaks):
        yield "Each bar is at its own micro-batch size (mb)."
    least = least_at_one(peaks)
    if least is not None:
        yield least


def _grid(peaks: Sequence[Peak]) -> Grid:
    roles = parts_in(peaks)
    columns = (
        Column("rung"),
        Column("micro-batch", right=True),
        *(Column(PART_WORDS[role], right=True) for role in roles),
        Column("peak", right=True),
        Column("peak at micro-batch 1", right=True),
    )
    rows = tuple(
        (
            peak.label + " (predicted)" * peak.expected,
            DASH if peak.micro_batch_size is None else str(peak.micro_batch_size),
            *(_size(dict(peak.parts).get(role)) for role in roles),
            format_bytes(peak.total),
            format_bytes(peak.at_one),
        )
        for peak in peaks
    )
    return Grid(columns, rows)


def _size(size: int | None) -> str:
    return format_bytes(size) if size else DASH


def _row(size: Size) -> int:
    return 30 if size == "wide" else 46


def _lines(peaks: Sequence[Peak], size: Size) -> int:
    return -(-len(_legend(peaks)[1]) // _LEGEND_COLUMNS[size])


def _legend(peaks: Sequence[Peak]) -> tuple[list[Any], list[str]]:
    """What stands for the parts, and for the mark at the peak at micro-batch size 1; its words."""
    roles = parts_in(peaks)
    handles, words = [patch(role) for role in roles], [PART_WORDS[role] for role in roles]
    if any(_is_marked(peak) for peak in peaks):
        handles.append(_mark())
        words.append("at micro-batch 1")
    return handles, words


def _is_marked(peak: Peak) -> bool:
    return peak.at_one is not None and peak.micro_batch_size != 1


def _mark() -> Any:
    from matplotlib.lines import Line2D

    return Line2D(
        [], [], marker="D", markersize=7, linestyle="none", color=ink("page"),
        markeredgecolor=ink("ink"), markeredgewidth=1.2,
    )  # fmt: skip


def _height(peaks: Sequence[Peak], size: Size) -> int:
    head = _LEGEND_LINE * _lines(peaks, size) + 30
    return head + _row(size) * len(peaks) + _AXIS


def _draw(peaks: Sequence[Peak], budget: Budget | None, figure: Any, size: Size) -> None:
    width, height = WIDTHS[size], _height(peaks, size)
    head = _LEGEND_LINE * _lines(peaks, size) + 30
    left = 8.0 + _left(peaks) if size == "wide" else 16.0
    right = 92 if size == "wide" else 24
    axes = figure.add_axes(
        (left / width, _AXIS / height, (width - left - right) / width, 1 - (head + _AXIS) / height)
    )
    top = _top(peaks, budget)
    _bars(axes, peaks, top, size)
    axes.set_xlim(0, top)
    axes.set_ylim(len(peaks) - 0.5, -0.5)
    axes.set_yticks([])
    ticks = byte_ticks(top, 9, axes.bbox.width)
    axes.set_xticks(ticks, list(map(tick_text, ticks)))
    frame(axes, grid="x")
    _mark_size_one(axes, peaks, size)
    _label(axes, peaks, top, size)
    if budget is not None and budget.usable_bytes < top:
        _mark_usable(axes, budget.usable_bytes, top, size)
    legend(figure, *_legend(peaks), _LEGEND_COLUMNS[size], 1 - 4 / height)


def _left(peaks: Sequence[Peak]) -> float:
    """Room for the labels; the letters of the font that is measured are at most so wide."""
    longest = max(len(_name(peak, "wide")) for peak in peaks)
    return longest * TEXT * 0.62 + 12


def _name(peak: Peak, size: Size) -> str:
    """The label with the micro-batch size: `lora-r16+ckpt, mb 4`."""
    about = f", {peak.size_words}" if peak.size_words else ""
    return elided(one_line(peak.label), _LABELS[size] - len(about)) + about


def _top(peaks: Sequence[Peak], budget: Budget | None) -> float:
    highest = max(peak.total for peak in peaks)
    if budget is None:
        return highest * 1.04
    if budget.usable_bytes > highest * _FAR:
        return highest * 1.04
    fitting = max((peak.total for peak in peaks if peak.fits), default=0)
    return min(
        max(highest * 1.04, budget.usable_bytes * 1.12),
        max(budget.usable_bytes * _BEYOND, fitting * 1.04),
    )


def _bars(axes: Any, peaks: Sequence[Peak], top: float, size: Size) -> None:
    thick = 0.62 if size == "wide" else 0.4
    shift = 0.0 if size == "wide" else 0.2
    ends = [0.0] * len(peaks)
    for role in parts_in(peaks):
        sizes = [dict(peak.parts).get(role, 0) for peak in peaks]
        drawn = [max(0.0, min(s, top - end)) for s, end in zip(sizes, ends, strict=True)]
        axes.barh(
            [number + shift for number in range(len(peaks))],
            drawn,
            left=ends,
            height=thick,
            color=ink(role),
            edgecolor=ink("page"),
            linewidth=0.8,
            hatch=_hatch(role),
        )
        ends = [end + s for end, s in zip(ends, drawn, strict=True)]


def _mark_size_one(axes: Any, peaks: Sequence[Peak], size: Size) -> None:
    """A mark where the peak at micro-batch size 1 is, which compares rungs like with like."""
    shift = 0.0 if size == "wide" else 0.2
    marked = [(number, peak.at_one) for number, peak in enumerate(peaks) if _is_marked(peak)]
    axes.plot(
        [at for _, at in marked], [number + shift for number, _ in marked], marker="D",
        markersize=7, linestyle="none", color=ink("page"), markeredgecolor=ink("ink"),
        markeredgewidth=1.2, zorder=3,
    )  # fmt: skip


def _hatch(role: Role) -> str | None:
    return "////" if role == "reserved" else None


def _label(axes: Any, peaks: Sequence[Peak], top: float, size: Size) -> None:
    for number, peak in enumerate(peaks):
        name = _name(peak, size)
        total = format_bytes(peak.total)
        color = ink("near" if peak.borderline else "ink" if peak.fits else "alarm")
        text = f"~{total}" if peak.expected else total
        if peak.total > top:
            text += " →"
        if size == "wide":
            axes.annotate(
                name, (0, number), (-10, 0), textcoords="offset points",
                ha="right", va="center", fontsize=TEXT, color=ink("ink"),
            )  # fmt: skip
            axes.annotate(
                text, (top, number), (84, 0), textcoords="offset points",
                ha="right", va="center", fontsize=SMALL, color=color,
            )  # fmt: skip
            continue
        axes.annotate(
            name, (0, number - 0.24), ha="left", va="center", fontsize=SMALL,
            color=ink("ink"),
        )  # fmt: skip
        axes.annotate(
            text,
            (top, number - 0.24),
            ha="right",
            va="center",
            fontsize=SMALL,
            color=color,
            bbox={"facecolor": ink("page"), "edgecolor": "none", "alpha": 0.85, "pad": 1},
            zorder=4,
        )


def _mark_usable(axes: Any, usable: int, top: float, size: Size) -> None:
    axes.axvline(usable, color=ink("alarm"), linewidth=1.6, zorder=3)
    axes.annotate(
        f"{format_bytes(usable)} usable",
        (usable, 1),
        (0, 4),
        xycoords=("data", "axes fraction"),
        textcoords="offset points",
        ha="right" if usable > top * 0.6 else "left" if usable < top * 0.2 else "center",
        va="bottom",
        fontsize=SMALL,
        color=ink("alarm"),
    )
