"""Which charts a report has, and the one that was asked for."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from oomdoctor.errors import ExitCode, OomDoctorError
from oomdoctor.records.report.report import Report
from oomdoctor.render.charts import Chart
from oomdoctor.render.charts.cards_chart import cards_chart
from oomdoctor.render.charts.frontier_chart import frontier_chart
from oomdoctor.render.charts.memory_chart import memory_chart
from oomdoctor.render.charts.predicted import predicted_chart
from oomdoctor.render.charts.request_chart import request_chart
from oomdoctor.render.charts.run_chart import run_chart
from oomdoctor.render.charts.step import bands_of, step_charts
from oomdoctor.render.charts.sweep import sweep_charts
from oomdoctor.render.charts.time_chart import time_chart

Make = Callable[[Report, str | None], Sequence[Chart]]


def _one(make: Callable[[Report], Chart | None]) -> Make:
    def charts(report: Report, _: str | None) -> Sequence[Chart]:
        chart = make(report)
        return () if chart is None else (chart,)

    return charts


@dataclass(frozen=True, slots=True)
class Kind:
    """A kind of chart: its name on the command line, what makes it, and what it needs.

    If it draws single rungs, the one with the key that `make` gets comes first.
    """

    name: str
    make: Make
    needs: str


KINDS = (
    Kind("frontier", _one(frontier_chart), "a configuration that fits and has a speed"),
    Kind("memory", _one(memory_chart), "a configuration with a known peak"),
    Kind("step", step_charts, "a configuration whose step was followed"),
    Kind("predicted", _one(predicted_chart), "a configuration both predicted and measured"),
    Kind("cards", _one(cards_chart), "a plan for several cards, with a speed"),
    Kind("sweep", lambda report, _: sweep_charts(report), "a plan with --sweep"),
    Kind("time", _one(time_chart), "a plan with --why, of a card with a known speed"),
    Kind("run", _one(run_chart), "a run whose memory was followed"),
    Kind("request", _one(request_chart), "a message with the size of its GPU"),
)


def charts_of(report: Report, rung: str | None = None) -> list[Chart]:
    """Every chart that the report has the numbers for; of single rungs that of `rung` first."""
    return [chart for kind in KINDS for chart in kind.make(report, rung)]


def chart_named(report: Report, name: str, rung: str | None = None) -> Chart:
    """The chart of a name; of several, the one of the rung with this key, or the first.

    Raises:
        OomDoctorError: the report has no numbers for it (exit 3).
    """
    kind = next(kind for kind in KINDS if kind.name == name)
    asked = next((result for result in report.results if result.key == rung), None)
    if asked is not None and name == "step" and bands_of(report, asked) is None:
        raise OomDoctorError(
            "no_chart",
            f"the step of {asked.label} was not followed, so there is no chart of it",
            None,
            ExitCode.NO,
        )
    charts = kind.make(report, rung)
    if charts:
        return charts[0]
    there = [other.name for other in KINDS if other.make(report, None)]
    raise OomDoctorError(
        "no_chart",
        f"the chart {name} needs {kind.needs}, which this run does not have",
        f"draw another one: --chart {there[0]}" if there else None,
        ExitCode.NO,
    )
