"""The predicted peak of each rung beside the measured one."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

from oomdoctor.analysis.ranking import in_order
from oomdoctor.records.job.result import ProbeResult
from oomdoctor.records.report.report import Report
from oomdoctor.render.blocks import Column, Grid, table_of
from oomdoctor.render.charts import Chart, Size
from oomdoctor.render.charts import axes as look
from oomdoctor.render.charts.axes import ink
from oomdoctor.render.text import one_line
from oomdoctor.render.words import counted
from oomdoctor.units import format_bytes, format_percent

_KINDS = ("device", "reserved", "allocated")
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
        partial(_height, pairs),
    )


def pairs_of(report: Report) -> list[Pair]:
    """The rungs with both peaks, in the order of the ranking."""
    pairs = (_pair(result) for result in in_order(report))
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
        f"{counted(len(pairs), 'configuration')}: the prediction that is furthest off is {off} "
        f"({worst.label})."
    )


def _signed(share: float) -> str:
    return ("+" if share > 0 else "") + format_percent(share, 2)


def _grid(pairs: Sequence[Pair]) -> Grid:
    return table_of(
        pairs,
        (
            (Column("config"), lambda pair: pair.label),
            (Column("peak"), lambda pair: f"{pair.kind}, {pair.evidence}"),
            (Column("predicted", right=True), lambda pair: format_bytes(pair.predicted)),
            (Column("measured", right=True), lambda pair: format_bytes(pair.measured)),
            (Column("error", right=True), lambda pair: _signed(pair.error)),
        ),
    )


def _height(pairs: Sequence[Pair], size: Size) -> int:
    return _HEAD + _FOOT + _ROW[size] * len(pairs)


def _draw(pairs: Sequence[Pair], figure: Any, size: Size) -> None:
    height, names = (
        _height(pairs, size),
        [look.elided(pair.label, look.LABELS[size]) for pair in pairs],
    )
    top, right = max(max(pair.predicted, pair.measured) for pair in pairs) * 1.06, look.END[size]
    axes = look.rows_in(figure, size, height, names, top, right=right, head=_HEAD, foot=_FOOT,
                        label="peak memory")  # fmt: skip
    look.byte_axis(axes, "x")
    mark = {"markersize": 6, "markeredgecolor": ink("lora"), "markeredgewidth": 1.8}
    for number, (pair, name) in enumerate(zip(pairs, names, strict=True)):
        at = number + look.SHIFT[size]
        axes.plot([pair.measured, pair.predicted], [at, at], color=ink("faint"), linewidth=1.5)
        axes.plot([pair.measured], [at], marker="o", markersize=11, color=ink("full"),
                  markeredgecolor=ink("page"), clip_on=False)  # fmt: skip
        axes.plot([pair.predicted], [at], marker="D", color=ink("page"), clip_on=False, **mark)
        look.name_row(axes, number, name, size)
        look.end_row(axes, number, _signed(pair.error), top, size)
    evidence = " or ".join(sorted({pair.evidence for pair in pairs}))
    predicted = look.handle("page", "D", **mark), "predicted"
    look.legend(figure, [(look.handle("full", "o"), evidence), predicted], 2, height)
