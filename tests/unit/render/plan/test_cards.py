"""The table of cards: one row each at any width, nothing cut, cards with equal answers together."""

from __future__ import annotations

from dataclasses import replace

import pytest
from example_plans import card, cards_report, plan_report, prices_report, rows

from oomdoctor.commands.plan.picks import pick, with_costs
from oomdoctor.records.job.dataset import TrainingTime
from oomdoctor.records.report.plan import (
    CardPick,
    CardPicks,
    CardPlan,
    CardPrice,
    PlanRemedy,
    PriceList,
)
from oomdoctor.records.report.report import Report
from oomdoctor.render import render_report
from oomdoctor.render.formats import Style
from oomdoctor.render.plan.cards import Cells, Detail, few
from oomdoctor.render.words import METHODS, card_name, money
from oomdoctor.system.catalogue import find_gpu, gpus
from oomdoctor.units import GIB

FULL, LORA, _, QLORA = rows()


def table(report: Report, width: int, *, terminal: bool = True) -> list[str]:
    text = render_report(report, "table", Style(terminal=terminal, width=width))
    return text.splitlines()


def priced_at(name: str, memory: int, speed: float, label: str = "lora-r16") -> CardPlan:
    lora = replace(pick(LORA), tokens_per_s=speed, label=label)
    one = card(name, memory // GIB, 1, CardPicks(pick(FULL), lora, None))
    return replace(one, memory_bytes=memory)


def every_card() -> Report:
    """A report for all cards, in which a small model fits everywhere, at twenty speeds."""
    cards = tuple(
        priced_at(gpu.name, gpu.memory_bytes, 1000.0 * 1.06 ** (number % 20))
        for number, gpu in enumerate(gpus())
    )
    return replace(cards_report(), cards=cards)


def with_own_data() -> Report:
    """The plan for several cards, with a time for 52,000 rows."""
    report = cards_report()
    assert report.request is not None
    time = TrainingTime(52_000, 1.0, 1_625, 10**8, 9_600.0, 0.3)

    def timed(pick: CardPick | None) -> CardPick | None:
        if pick is None or pick.tokens_per_s is None:
            return pick
        return replace(pick, training_time=time)

    cards = tuple(
        replace(one, picks=CardPicks(*(timed(getattr(one.picks, name)) for name in METHODS)))
        for one in report.cards
    )
    return replace(report, cards=cards)


@pytest.mark.parametrize("width", [80, 130])
def test_the_time_for_own_data_is_in_the_table(width: int) -> None:
    lines = table(with_own_data(), width)
    row = next(line for line in lines if "RTX 4090 " in line and "short by" in line)
    assert row.count("~2 h 40 min") == 2
    assert ("/s" in row) is False
    text = " ".join(" ".join(lines).split())
    assert "~ is the estimated time for your data (/s: tokens/s), off by" in text
    assert "Your data: 52,000 rows x 1 epoch, 1,625 optimizer steps. Each row counts as" in text


def test_a_method_without_a_rung_has_no_column() -> None:
    report = cards_report()
    cards = tuple(replace(one, picks=replace(one.picks, full=None)) for one in report.cards)
    for terminal in (True, False):
        lines = table(replace(report, cards=cards), 100, terminal=terminal)
        (head,) = (line for line in lines if line.lstrip().startswith("card "))
        assert "full" not in head and "LoRA" in head and "QLoRA" in head
    assert "A dash: not predicted." in "\n".join(lines)  # of LoRA on the L4
    none = tuple(replace(one, picks=replace(one.picks, full=None, lora=None)) for one in cards)
    assert "A dash" not in "\n".join(table(replace(report, cards=none), 100))


def test_a_pipe_has_the_speed_beside_the_time_for_own_data() -> None:
    (row,) = (r for r in table(with_own_data(), 80, terminal=False) if r.startswith("  RTX 4090"))
    assert "lora-r16+ckpt, 4 x 8, ~5,310/s, ~2 h 40 min" in row


@pytest.mark.parametrize("gpu", gpus(), ids=lambda gpu: gpu.name)
def test_the_short_name_of_a_card_is_one_that_gpu_takes(gpu) -> None:
    assert find_gpu(card_name(gpu.name)) == gpu


@pytest.mark.parametrize("width", [80, 100, 140])
def test_all_cards_are_a_page(width: int) -> None:
    report = every_card()
    lines = table(report, width)
    start = next(i for i, line in enumerate(lines) if line.startswith("Best configuration")) + 2
    end = next(i for i, line in enumerate(lines) if "tokens/s" in line and i > start)
    body = [line for line in lines[start:end] if "~" in line]
    assert len(body) <= 60 < len(report.cards)
    assert max(map(len, lines[start:])) <= width
    text = " ".join(" ".join(lines[start:]).split())
    assert "…" not in text
    for target in report.cards:  # in a row of its own, or in the note of a row
        assert card_name(target.name) in text


def test_a_pipe_has_a_row_for_each_card() -> None:
    report = every_card()
    lines = table(report, 80, terminal=False)
    for target in report.cards:
        assert any(line.startswith(f"  {card_name(target.name)} ") for line in lines), target.name


def test_cards_share_a_row_only_with_the_same_memory_rungs_and_price() -> None:
    first = priced_at("A", 24 * GIB, 1000.0)
    same = priced_at("B", 24 * GIB, 985.0)
    others = (
        priced_at("C", 24 * GIB, 900.0),
        priced_at("D", 16 * GIB, 1000.0),
        priced_at("E", 24 * GIB, 1000.0, label="lora-r16+ckpt"),
        replace(priced_at("F", 24 * GIB, 1000.0), price_per_hour=1.0),
    )
    groups, note = few([first, same, *others])
    assert [shown.name for shown, *_ in groups] == ["A", "C", "D", "E", "F"]
    assert groups[0] == [first, same]
    assert "speeds within 2%: A = B" in note
    assert few(others)[1] == ""


def test_what_fits_nothing_is_one_line_of_all_cards_but_a_row_of_named_ones() -> None:
    report = cards_report()
    text = "\n".join(table(report, 100))
    assert "Nothing fits on 2 cards: 12 GiB: 12.0 GiB; 16 GiB: T4." in text
    assert not any(line.startswith("  T4") for line in text.splitlines())
    assert report.request is not None and report.request.plan is not None
    plan = replace(report.request.plan, all_gpus=False, gpus=("T4", "L4"))
    named = replace(report, request=replace(report.request, plan=plan))
    text = "\n".join(table(named, 100))
    assert "Nothing fits" not in text
    assert any(line.startswith("  T4") for line in text.splitlines())


def test_where_nothing_fits_the_closest_card_is_named() -> None:
    report = cards_report()
    near = replace(pick(FULL), missed_by_bytes=GIB)
    cards = tuple(
        replace(target, fitting=0, picks=CardPicks(near, None, None)) for target in report.cards
    )
    text = "\n".join(table(replace(report, cards=cards), 100))
    assert "Nothing fits on 5 cards" in text
    assert "short by 1.00 GiB for full-bf16." in text


def test_prices_add_a_cost_and_leave_cards_without_one_out() -> None:
    lines = table(prices_report(), 100)
    row = next(line for line in lines if line.startswith("  RTX 4090"))
    assert "$0.44" in row
    assert "~5,310 $0.023" in row  # 0.44 an hour / 3,600 s / 5,312 tokens/s
    assert not any(line.startswith("  RTX A5000") for line in lines)
    assert "  Without a price: 2 cards; something fits on 1." in lines
    assert any("prices.csv: Voodoo 2 is not a known card" in line for line in lines)


def test_a_narrow_terminal_says_what_is_not_shown() -> None:
    text = " ".join(" ".join(table(cards_report(), 80)).split())
    assert "Not shown at this width" not in " ".join(table(cards_report(), 140))
    assert "Not shown at this width: what each cell runs" in " ".join(
        " ".join(table(cards_report(), 64)).split()
    )
    assert "short by 52.4 GiB" in text and "~5,310 x4 ckpt" in text


@pytest.mark.parametrize(
    ("amount", "currency", "text"),
    [
        (0.1944, "$", "$0.19"),
        (12.3, "€", "€12.30"),
        (0.0234, "EUR", "0.023 EUR"),
        (0.00537, "", "0.0054"),
        (0.08, "$", "$0.08"),
        (0.0996, "$", "$0.10"),
        (1e-9, "$", "$0.000000001"),
        (0.0, "$", "$0.00"),
        (1234.5, "$", "$1,234.50"),
    ],
)
def test_money(amount: float, currency: str, text: str) -> None:
    assert money(amount, currency) == text


def test_an_interrupted_plan_says_so_first() -> None:
    first = table(replace(cards_report(), status="interrupted"), 140)[0]
    assert first.endswith(
        "interrupted after 14.2 s; so far at least one config fits on 3 of 5 cards"
    )


def test_the_table_of_cards_says_what_the_page_of_one_card_says() -> None:
    """A method that fits with a change was only "short by" in the table."""
    remedy = PlanRemedy(
        "full", "k", FULL.label, "expandable_segments", 1, 2, "simulated", "method=full", None
    )
    first, *others = cards_report().cards
    cell = Cells([first, *others], Detail.LABEL, "").cell
    assert cell(first, "full").endswith("GiB")
    changed = replace(first, remedies=(remedy,))
    assert cell(changed, "full").endswith("GiB; fits with expandable_segments")
    assert cell(changed, "lora") == cell(first, "lora")


def test_the_batch_of_several_gpus_names_their_number() -> None:
    """As the table of one card does: it said `2 x 1` of two GPUs with two rows each."""
    first, *others = cards_report().cards
    lora = first.picks.lora
    assert lora is not None
    on_two = replace(first, picks=replace(first.picks, lora=replace(lora, world_size=2)))
    cell = Cells([on_two, *others], Detail.LABEL, "").cell
    assert f"{lora.micro_batch_size} x {lora.gradient_accumulation_steps} x 2" in cell(
        on_two, "lora"
    )


def test_the_cost_is_of_all_gpus_and_of_the_own_data_where_they_are_known() -> None:
    row = replace(rows()[-1], tokens_per_s=4000.0)
    eight = replace(row, config=replace(row.config, world_size=8))
    own = TrainingTime(1000, 1.0, 10, 2_000_000, 7200.0, 0.1)
    picks = CardPicks(pick(row), pick(eight), pick(replace(eight, training_time=own)))
    costs = with_costs(picks, 0.5)
    assert costs.full is not None and costs.lora is not None and costs.qlora is not None
    assert costs.full.cost_per_million_tokens == pytest.approx(0.5 * 250 / 3600)
    assert costs.lora.cost_per_million_tokens == pytest.approx(8 * 0.5 * 250 / 3600)
    assert costs.lora.own_data_cost is None and costs.qlora.own_data_cost == pytest.approx(8.0)
    report = prices_report()
    priced = replace(card("NVIDIA L4", 24, 1, costs), price_per_hour=0.5)
    lines = table(replace(report, cards=(priced,)), 200)
    assert any(", $8.00" in line for line in lines)
    assert any(line.endswith("of each method, cost of your data") for line in lines)
    assert any("The cost of all GPUs is for all of your data" in line for line in lines)


def test_a_plan_for_one_card_has_a_column_of_costs() -> None:
    report = plan_report()
    assert report.request is not None and report.request.plan is not None
    prices = PriceList("prices.csv", "$", (CardPrice("NVIDIA GeForce RTX 4090", 0.44, "4090"),))
    plan = replace(report.request.plan, prices=prices)
    cards = tuple(replace(each, price_per_hour=0.44) for each in report.cards)
    priced = replace(report, request=replace(report.request, plan=plan), cards=cards)
    assert any(line.endswith("1M tokens cost") for line in table(priced, 120))
    assert not any("cost" in line for line in table(report, 120))
