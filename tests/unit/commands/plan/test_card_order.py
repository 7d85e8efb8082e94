"""The order of the cards, their prices, and what a million tokens costs on them."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from analysis_make import request as survey_request
from example_plans import card, rows

from oomdoctor.commands.devices.cards import cards_of
from oomdoctor.commands.plan.picks import pick, price_list, price_of, with_costs
from oomdoctor.commands.plan.plan_report import in_order
from oomdoctor.commands.plan.run_plan import _price_warnings
from oomdoctor.records.report.plan import CardOrder, CardPicks, CardPlan, PlanRequest
from oomdoctor.units import GIB

FULL, FITS = rows()[0], rows()[1]


def one(name: str, gigabytes: int, speed: float | None, per_hour: float | None) -> CardPlan:
    """A card whose LoRA rung is that fast; without a speed or a price, it is unknown."""
    lora = replace(pick(FITS), tokens_per_s=speed, tokens_per_s_spread=0.25)
    picks = with_costs(CardPicks(pick(FULL), lora, None), per_hour)
    return replace(card(name, gigabytes, 1, picks), price_per_hour=per_hour)


CARDS = (
    card("Z1", 8, 0, CardPicks(pick(FULL), None, None)),
    one("A10", 24, 1000.0, 0.5),
    one("A2", 16, 300.0, 0.1),
    one("H100", 80, 9000.0, None),
    one("B100", 192, None, 3.0),
)


@pytest.mark.parametrize(
    ("order", "names"),
    [
        ("speed", ["H100", "A10", "A2", "B100", "Z1"]),
        ("memory", ["A2", "A10", "H100", "B100", "Z1"]),
        ("name", ["A2", "A10", "B100", "H100", "Z1"]),
        ("cost", ["A2", "A10", "H100", "B100", "Z1"]),
        (None, ["Z1", "A10", "A2", "H100", "B100"]),
    ],
)
def test_order(order: CardOrder | None, names: list[str]) -> None:
    """What fits nothing comes last in every order."""
    found = in_order(CARDS, PlanRequest((), all_gpus=True, sort=order))
    assert [card.name for card in found] == names


def test_the_cost_of_a_million_tokens() -> None:
    """0.5 an hour at 1,000 tokens/s: 1M tokens take 1,000 s."""
    lora = CARDS[1].picks.lora
    assert lora is not None
    assert lora.cost_per_million_tokens == pytest.approx(0.5 / 3.6)
    assert lora.cost_per_million_tokens_low == pytest.approx(0.5 / 3.6 / 1.25)
    assert lora.cost_per_million_tokens_high == pytest.approx(0.5 / 3.6 / 0.75)
    full = CARDS[1].picks.full
    assert full is not None and full.cost_per_million_tokens is None  # it does not fit


def test_the_price_of_a_machine_is_shared_by_its_gpus(tmp_path: Path) -> None:
    file = tmp_path / "p.csv"
    file.write_text("g6.48xlarge,16\ng6e.xlarge,2\n")
    prices = price_list(file)
    assert price_of("NVIDIA L4", prices) == 2.0
    assert price_of("NVIDIA L40S", prices) == 2.0


def test_prices_by_the_names_that_gpu_takes(tmp_path: Path) -> None:
    file = tmp_path / "p.csv"
    file.write_text("4090,0.5\nNVIDIA GeForce RTX 4090,0.4\nA100,1\nVoodoo 2,1\nVoodoo 2,2\n")
    prices = price_list(file)
    assert price_of("NVIDIA GeForce RTX 4090", prices) == 0.4
    assert price_of("NVIDIA A100-PCIE-40GB", prices) is None
    assert [price.name for price in prices.prices] == ["NVIDIA GeForce RTX 4090", "A100"]
    assert prices.repeated == ("NVIDIA GeForce RTX 4090",)
    assert prices.unknown == ("Voodoo 2",)
    file.write_text("Voodoo 2,1\n")
    with pytest.raises(ValueError, match="Voodoo 2 is not a card that `oomdoctor gpus` lists"):
        price_list(file)


def test_cards_with_less_memory_are_left_out() -> None:
    found = cards_of(PlanRequest((), all_gpus=True, min_memory_bytes=48 * GIB), 0.02)
    assert min(card.memory_bytes for card in found) == 48 * GIB


def test_a_price_of_a_card_that_is_not_compared_is_told(tmp_path: Path) -> None:
    file = tmp_path / "p.csv"
    file.write_text("RTX 4090,0.5\nMI300X,2\n")
    for plan, told in (
        (PlanRequest((), all_gpus=True, prices=price_list(file)), True),
        (PlanRequest(("RTX 4090", "MI300X"), prices=price_list(file)), False),
    ):
        found = _price_warnings(cards_of(plan, 0.0), survey_request(plan=plan))
        assert [w.code for w in found] == ["prices"] * told
        assert all("AMD Instinct MI300X left out" in w.message for w in found)
