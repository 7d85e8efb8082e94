"""What a plan for several cards found: the speed of the best rung of each method on each card."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

from oomdoctor.records.report.plan import CardPick, CardPlan
from oomdoctor.records.report.report import Report
from oomdoctor.render.blocks import Column, Grid, table_of
from oomdoctor.render.charts import Chart, Size
from oomdoctor.render.charts import axes as look
from oomdoctor.render.charts.axes import ink
from oomdoctor.render.charts.frontier_chart import METHODS, rate_text
from oomdoctor.render.text import one_line
from oomdoctor.render.words import card_name, counted
from oomdoctor.units import DASH, format_bytes, format_rate

_MOST = 30  # cards; a chart fits on a sheet of paper
_ROW: dict[Size, int] = {"wide": 28, "narrow": 44}
_HEAD: dict[Size, int] = {"wide": 34, "narrow": 54}
_FOOT = 52


@dataclass(frozen=True, slots=True)
class Row:
    """A card, and the pick of each method that fits on it."""

    name: str
    picks: tuple[tuple[str, CardPick], ...]


def cards_chart(report: Report) -> Chart | None:
    """The chart, if there are several cards and a rung that fits has a speed."""
    if len(report.cards) < 2 or report.sweep is not None:
        return None
    rows = [row_of(card) for card in report.cards]
    speeds = [pick.tokens_per_s for row in rows for _, pick in row.picks]
    if not any(speeds):
        return None
    drawn = rows[:_MOST]
    return Chart(
        "cards",
        "Speed on each card",
        _says(rows),
        _grid(rows),
        partial(_draw, drawn),
        partial(_height, drawn),
    )


def row_of(card: CardPlan) -> Row:
    """A card with what fits on it."""
    picks = ((method, getattr(card.picks, method)) for method in METHODS)
    name = f"{card_name(card.name)}, {format_bytes(card.usable_bytes)} usable"
    return Row(one_line(name), tuple((m, pick) for m, pick in picks if pick and pick.fits))


def _says(rows: Sequence[Row]) -> str:
    fastest = max(
        ((pick.tokens_per_s or 0.0, row, pick) for row in rows for _, pick in row.picks),
        key=lambda pair: pair[0],
    )
    none = sum(not row.picks for row in rows)
    text = (
        f"The fastest of {counted(len(rows), 'card')} is {fastest[1].name}: "
        f"{one_line(fastest[2].label)} at about {format_rate(fastest[0])} tokens/s."
    )
    if none:
        text += f" Nothing fits on {none}."
    if len(rows) > _MOST:
        text += f" The first {_MOST} are drawn."
    return text


def _grid(rows: Sequence[Row]) -> Grid:
    return table_of(
        rows,
        (
            (Column("card"), lambda row: row.name),
            *(
                (Column(f"{word}, tokens/s", right=True), partial(_speed, method))
                for method, (_, _, word) in METHODS.items()
            ),
        ),
    )


def _speed(method: str, row: Row) -> str:
    pick = dict(row.picks).get(method)
    return DASH if pick is None else f"~{format_rate(pick.tokens_per_s)}"


def _height(rows: Sequence[Row], size: Size) -> int:
    return _HEAD[size] + _FOOT + _ROW[size] * len(rows)


def _draw(rows: Sequence[Row], figure: Any, size: Size) -> None:
    height, names = _height(rows, size), [look.elided(row.name, look.LABELS[size]) for row in rows]
    top = max(pick.tokens_per_s or 0.0 for row in rows for _, pick in row.picks) * 1.06
    axes = look.rows_in(figure, size, height, names, top, right=30, head=_HEAD[size], foot=_FOOT,
                        label="tokens/s, estimated")  # fmt: skip
    axes.locator_params(axis="x", nbins=8 if size == "wide" else 4)
    axes.xaxis.set_major_formatter(lambda value, _: rate_text(value))
    for number, (row, name) in enumerate(zip(rows, names, strict=True)):
        at = number + look.SHIFT[size]
        axes.plot([0, top], [at, at], color=ink("line"), linewidth=1, zorder=0.5)
        for method, pick in row.picks:
            if pick.tokens_per_s is not None:
                role, marker, _ = METHODS[method]
                axes.plot([pick.tokens_per_s], [at], marker=marker, markersize=9,
                          color=ink(role), markeredgecolor=ink("page"), clip_on=False)  # fmt: skip
        nothing = not row.picks
        look.name_row(axes, number, name + ": nothing fits" * (nothing and size == "narrow"), size)
        if nothing and size == "wide":
            clear = {"facecolor": ink("page"), "edgecolor": "none", "pad": 3}  # of the row's line
            look.note(axes, "nothing fits", (0, number), (8, 0), va="center", color=ink("faint"),
                      bbox=clear)  # fmt: skip
    there = {method for row in rows for method, _ in row.picks}
    shown = [each for method, each in METHODS.items() if method in there]
    entries = [(look.handle(role, marker), word) for role, marker, word in shown]
    look.legend(figure, entries, 3 if size == "wide" else 2, height)
