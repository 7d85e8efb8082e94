"""The chart of several cards: what fits on each, and how fast it is."""

from __future__ import annotations

from dataclasses import replace

from example_plans import cards_report, plan_report, sweep_report

from oomdoctor.records.report.plan import CardPicks
from oomdoctor.render.charts.cards_chart import cards_chart, row_of
from oomdoctor.render.charts.drawing import svg, svg_part
from oomdoctor.units import format_rate


def test_each_card_has_a_row_with_the_speeds_of_what_fits() -> None:
    report = cards_report()
    chart = cards_chart(report)
    assert chart is not None and len(chart.grid.rows) == len(report.cards)
    for card, cells in zip(report.cards, chart.grid.rows, strict=True):
        shown = dict(row_of(card).picks)
        for method, cell in zip(("full", "lora", "qlora"), cells[1:], strict=True):
            pick = getattr(card.picks, method)
            fits = pick is not None and pick.fits
            assert (method in shown) is fits
            assert cell == (f"~{format_rate(pick.tokens_per_s)}" if fits else "-")


def test_a_card_on_which_nothing_fits_says_so() -> None:
    report = cards_report()
    first, *others = report.cards
    bare = replace(first, picks=CardPicks(None, None, None))
    chart = cards_chart(replace(report, cards=(*others, bare, *others)))
    assert chart is not None and "Nothing fits on" in chart.says
    assert "nothing fits" in svg(chart) and "nothing fits" in svg_part(chart, "narrow", 1, {})


def test_a_hundred_cards_fit_on_a_sheet() -> None:
    report = cards_report()
    many = cards_chart(replace(report, cards=report.cards * 40))
    assert many is not None and many.height("wide") < 950 and "are drawn" in many.says
    assert len(many.grid.rows) == 40 * len(report.cards)


def test_one_card_or_a_sweep_has_other_charts() -> None:
    assert cards_chart(plan_report()) is None
    assert cards_chart(sweep_report()) is None
