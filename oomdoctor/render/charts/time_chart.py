"""The time of a step as bars of its parts: each phase, and the whole step."""

from __future__ import annotations

from functools import partial
from typing import Any

from oomdoctor.records.facts.step_parts import STEP_PARTS
from oomdoctor.records.job.step_time import StepTime
from oomdoctor.records.report.report import Report
from oomdoctor.render.charts import Chart, Size
from oomdoctor.render.charts import axes as look
from oomdoctor.render.charts.axes import ink
from oomdoctor.render.charts.time_parts import step_rows, step_table
from oomdoctor.render.text import one_line
from oomdoctor.render.words import BOUND_WORDS
from oomdoctor.units import format_percent, format_seconds

_ROW: dict[Size, int] = {"wide": 30, "narrow": 46}
_LEGEND_COLUMNS: dict[Size, int] = {"wide": 6, "narrow": 2}
_LEGEND_LINE = 21
_AXIS = 46  # pixels below the bars


def time_chart(report: Report) -> Chart | None:
    """The chart, if the time of a step was estimated for --why."""
    why = report.why
    if why is None or why.step is None:
        return None
    step, label = why.step, one_line(why.label)
    return Chart("time", "Time of a step", f"{label}: {time_says(step, why.mfu)}", step_table(step),
                 partial(_draw, step), partial(_height, step))  # fmt: skip


def time_says(step: StepTime, mfu: float | None = None) -> str:
    """The time of a step, what bounds it, its largest part and MFU, as a sentence."""
    most = max(step.parts, key=lambda of: of.seconds)
    share = format_percent(most.seconds / step.seconds)
    utilization = "" if mfu is None else f" MFU is {format_percent(mfu)}."
    return (
        f"A step takes about {format_seconds(step.seconds)}, bound by {BOUND_WORDS[step.bound]}; "
        f"{share} of it is {STEP_PARTS[most.part].words}.{utilization}"
    )


def _height(step: StepTime, size: Size) -> int:
    return _head(step, size) + _ROW[size] * len(step_rows(step)[:-1]) + _AXIS


def _head(step: StepTime, size: Size) -> int:
    return _LEGEND_LINE * -(-len(step.parts) // _LEGEND_COLUMNS[size]) + 30


def _draw(step: StepTime, figure: Any, size: Size) -> None:
    rows, height, head = step_rows(step)[:-1], _height(step, size), _head(step, size)
    names, top = [row.name for row in rows], step.seconds
    right = look.END[size]
    axes = look.rows_in(figure, size, height, names, top, right=right, head=head, foot=_AXIS)
    for number, row in enumerate(rows):
        end = 0.0
        for of in step.parts:
            seconds = row.parts.get(of.part, 0.0)
            axes.barh(
                [number + look.SHIFT[size]], [seconds], left=[end],
                height=0.62 if size == "wide" else 0.4,
                color=ink(of.part), edgecolor=ink("page"), linewidth=0.8,
            )  # fmt: skip
            end += seconds
        look.name_row(axes, number, row.name, size)
        look.end_row(axes, number, format_seconds(row.seconds), top, size)
    axes.locator_params(axis="x", nbins=7 if size == "wide" else 3)
    axes.xaxis.set_major_formatter(lambda seconds, _: format_seconds(seconds) if seconds else "0")
    entries = [(look.patch(of.part), STEP_PARTS[of.part].words) for of in step.parts]
    look.legend(figure, entries, _LEGEND_COLUMNS[size], height)
