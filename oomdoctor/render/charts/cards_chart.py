"""What a plan for several cards found: the speed of the best rung of each method on each card."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

from oomdoctor.records.report.plan import CardPick, CardPlan
from oomdoctor.records.report.report import Report
from oomdoctor.render.blocks import Column, Grid
from oomdoctor.render.charts import WIDTHS, Chart, Size
from oomdoctor.render.charts.axes import SMALL, TEXT, elided, frame, ink, legend
from oomdoctor.render.charts.frontier_chart import METHODS, rate_text
from oomdoctor.render.text import one_line
from oomdoctor.render.words import card_name, counted
from oomdoctor.units import DASH, format_bytes, format_rate

_MOST = 30  # cards; a chart fits on a sheet of paper
_ROW: dict[Size, int] = {"wide": 28, "narrow": 44}
_LABELS: dict[Size, int] = {"wide": 30, "narrow": 36}
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
        lambda size: _HEAD[size] + _FOOT + _ROW[size] * len(drawn),
    )


def row_of(card: CardPlan) -> Row:
    """A card with what fits on it."""
    found = ((method, getattr(card.picks, method)) for method in METHODS)
    name = f"{card_name(card.name)}, {format_bytes(card.usable_bytes)} usable"
    return Row(one_line(name), tuple((m, pick) for m, pick in found if pick and pick.fits))


def _says(rows: Sequence[Row]) -> str:
    fastest = max(
        ((pick.tokens_per_s or 0.0, row, pick) for row in rows for _, pick in row.picks),
        key=lambda one: one[0],
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
    columns = (
        Column("card"),
        *(Column(f"{word}, tokens/s", right=True) for _, _, word in METHODS.values()),
    )
    return Grid(
        columns,
        tuple(
            (row.name, *(_cell(dict(row.picks).get(method)) for method in METHODS)) for row in rows
        ),
    )


def _cell(pick: CardPick | None) -> str:
    return DASH if pick is None else f"~{format_rate(pick.tokens_per_s)}"


def _draw(rows: Sequence[Row], figure: Any, size: Size) -> None:
    from matplotlib.lines import Line2D

    width, height = WIDTHS[size], _HEAD[size] + _FOOT + _ROW[size] * len(rows)
    longest = max(len(elided(row.name, _LABELS[size])) for row in rows)
    left = longest * TEXT * 0.62 + 20 if size == "wide" else 16
    axes = figure.add_axes(
        (left / width, _FOOT / height, (width - left - 30) / width,
         1 - (_HEAD[size] + _FOOT) / height)
    )  # fmt: skip
    top = max(pick.tokens_per_s or 0.0 for row in rows for _, pick in row.picks)
    axes.set_xlim(0, top * 1.06)
    axes.set_ylim(len(rows) - 0.5, -0.5)
    axes.set_yticks([])
    axes.locator_params(axis="x", nbins=8 if size == "wide" else 4)
    axes.xaxis.set_major_formatter(lambda value, _: rate_text(value))
    axes.set_xlabel("tokens/s, estimated", fontsize=SMALL, color=ink("faint"), labelpad=6)
    frame(axes, grid="x")
    for number, row in enumerate(rows):
        at = number + (0.2 if size == "narrow" else 0.0)
        axes.plot([0, top * 1.06], [at, at], color=ink("line"), linewidth=1, zorder=0.5)
        for method, pick in row.picks:
            if pick.tokens_per_s is None:
                continue
            role, marker, _ = METHODS[method]
            axes.plot([pick.tokens_per_s], [at], marker=marker, markersize=9,
                      color=ink(role), markeredgecolor=ink("page"), clip_on=False)  # fmt: skip
        name = elided(row.name, _LABELS[size])
        name += "" if row.picks else ": nothing fits" if size == "narrow" else ""
        place = {"textcoords": "offset points", "va": "center", "color": ink("ink")}
        if size == "wide":
            axes.annotate(name, (0, number), (-10, 0), ha="right", fontsize=TEXT, **place)
            if not row.picks:
                place["color"] = ink("faint")
                axes.annotate("nothing fits", (0, number), (8, 0), fontsize=SMALL, **place)
        else:
            axes.annotate(name, (0, number - 0.24), (0, 0), fontsize=SMALL, **place)
    there = {method for row in rows for method, _ in row.picks}
    shown = [each for method, each in METHODS.items() if method in there]
    handles = [
        Line2D([], [], color=ink(role), marker=marker, markersize=8, linestyle="none",
               markeredgecolor=ink("page"))
        for role, marker, _ in shown
    ]  # fmt: skip
    words = [word for _, _, word in shown]
    legend(figure, handles, words, 3 if size == "wide" else 2, 1 - 4 / height)
