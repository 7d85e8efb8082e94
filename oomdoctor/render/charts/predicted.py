"""The predicted peak of each rung beside the measured one."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

from oomdoctor.records.job.result import ProbeResult
from oomdoctor.records.report.report import Report
from oomdoctor.render.blocks import Column, Grid
from oomdoctor.render.charts import WIDTHS, Chart, Size
from oomdoctor.render.charts.axes import (
    SMALL,
    TEXT,
    byte_ticks,
    elided,
    frame,
    ink,
    legend,
    tick_text,
)
from oomdoctor.render.text import one_line
from oomdoctor.render.words import counted, ranked_results
from oomdoctor.units import format_bytes, format_percent

_KINDS = ("device", "reserved", "allocated")
_LABELS: dict[Size, int] = {"wide": 34, "narrow": 30}
_ROW: dict[Size, int] = {"wide": 30, "narrow": 46}
_HEAD, _FOOT = 34, 50


@dataclass(frozen=True, slots=True)
class Pair:
    """Two peaks of a rung of the same `kind` of bytes; `error` is that of the prediction."""

    label: str
    predicted: int
    measured: int
    kind: str
    evidence: str

    @property
    def error(self) -> float:
        return (self.predicted - self.measured) / self.measured


def predicted_chart(report: Report) -> Chart | None:
    """The chart, if a rung was both predicted and measured."""
    pairs = pairs_of(report)
    if not pairs:
        return None
    return Chart(
        "predicted",
        "Predicted against measured",
        _says(pairs),
        _grid(pairs),
        partial(_draw, pairs),
        lambda size: _HEAD + _FOOT + _ROW[size] * len(pairs),
    )


def pairs_of(report: Report) -> list[Pair]:
    """The rungs with both peaks, in the order of the ranking."""
    others = [result for result in report.results if result.outcome != "fits"]
    pairs = (_pair(result) for result in (*ranked_results(report), *others))
    return [pair for pair in pairs if pair is not None]


def _pair(result: ProbeResult) -> Pair | None:
    """Peaks of the same kind: the most complete that both have."""
    if result.predicted is None or result.measurement is None or result.evidence == "predicted":
        return None
    for kind in _KINDS:
        predicted: int | None = getattr(result.predicted, f"peak_{kind}_bytes")
        measured: int | None = getattr(result, f"peak_{kind}_bytes")
        if predicted and measured:
            return Pair(one_line(result.label), predicted, measured, kind, result.evidence)
    return None


def _says(pairs: Sequence[Pair]) -> str:
    worst = max(pairs, key=lambda pair: abs(pair.error))
    off = _signed(worst.error)
    return (
        f"{counted(len(pairs), 'rung')}: the prediction that is furthest off is {off} "
        f"({worst.label})."
    )


def _signed(share: float) -> str:
    return ("+" if share > 0 else "") + format_percent(share, 2)


def _grid(pairs: Sequence[Pair]) -> Grid:
    columns = (
        Column("rung"),
        Column("peak"),
        Column("predicted", right=True),
        Column("measured", right=True),
        Column("error", right=True),
    )
    rows = tuple(
        (
            pair.label,
            f"{pair.kind}, {pair.evidence}",
            format_bytes(pair.predicted),
            format_bytes(pair.measured),
            _signed(pair.error),
        )
        for pair in pairs
    )
    return Grid(columns, rows)


def _draw(pairs: Sequence[Pair], figure: Any, size: Size) -> None:
    from matplotlib.lines import Line2D

    width, height = WIDTHS[size], _HEAD + _FOOT + _ROW[size] * len(pairs)
    longest = max(len(elided(pair.label, _LABELS[size])) for pair in pairs)
    left = longest * TEXT * 0.62 + 20 if size == "wide" else 16
    right = 92 if size == "wide" else 24
    axes = figure.add_axes(
        (left / width, _FOOT / height, (width - left - right) / width, 1 - (_HEAD + _FOOT) / height)
    )
    top = max(max(pair.predicted, pair.measured) for pair in pairs) * 1.06
    axes.set_xlim(0, top)
    axes.set_ylim(len(pairs) - 0.5, -0.5)
    axes.set_yticks([])
    ticks = byte_ticks(top, 9, axes.bbox.width)
    axes.set_xticks(ticks, list(map(tick_text, ticks)))
    axes.set_xlabel("peak memory", fontsize=SMALL, color=ink("faint"), labelpad=6)
    frame(axes, grid="x")
    shift = 0.0 if size == "wide" else 0.2
    for number, pair in enumerate(pairs):
        _row(axes, number, shift, pair, top, size)
    handles = [
        Line2D([], [], color=ink("full"), marker="o", markersize=8, linestyle="none",
               markeredgecolor=ink("page")),
        Line2D([], [], color=ink("page"), marker="D", markersize=6, linestyle="none",
               markeredgecolor=ink("lora"), markeredgewidth=1.8),
    ]  # fmt: skip
    evidence = sorted({pair.evidence for pair in pairs})
    legend(figure, handles, [" or ".join(evidence), "predicted"], 2, 1 - 4 / height)


def _row(axes: Any, number: int, shift: float, pair: Pair, top: float, size: Size) -> None:
    at = number + shift
    axes.plot([pair.measured, pair.predicted], [at, at], color=ink("faint"), linewidth=1.5)
    axes.plot([pair.measured], [at], marker="o", markersize=11, color=ink("full"),
              markeredgecolor=ink("page"), clip_on=False)  # fmt: skip
    axes.plot([pair.predicted], [at], marker="D", markersize=6, color=ink("page"),
              markeredgecolor=ink("lora"), markeredgewidth=1.8, clip_on=False)  # fmt: skip
    name, error = elided(pair.label, _LABELS[size]), _signed(pair.error)
    if size == "wide":
        axes.annotate(name, (0, number), (-10, 0), textcoords="offset points", ha="right",
                      va="center", fontsize=TEXT, color=ink("ink"))  # fmt: skip
        axes.annotate(error, (top, number), (84, 0), textcoords="offset points", ha="right",
                      va="center", fontsize=SMALL, color=ink("ink"))  # fmt: skip
        return
    axes.annotate(name, (0, number - 0.24), ha="left", va="center", fontsize=SMALL,
                  color=ink("ink"))  # fmt: skip
    axes.annotate(error, (top, number - 0.24), ha="right", va="center", fontsize=SMALL,
                  color=ink("ink"))  # fmt: skip
