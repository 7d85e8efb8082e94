"""The line of a card in a plan: its usable memory, and the best rung of each method."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from oomdoctor.analysis.ranking import rank
from oomdoctor.analysis.rent import rent
from oomdoctor.commands.devices.cards import Card, card_named, of_ranks
from oomdoctor.records.codec import shared
from oomdoctor.records.facts.choices import Method
from oomdoctor.records.job.result import ProbeResult
from oomdoctor.records.report.plan import (
    CardPick,
    CardPicks,
    CardPlan,
    CardPrice,
    PlanRemedy,
    PriceList,
)
from oomdoctor.records.report.report import SurveyRequest
from oomdoctor.records.report.user_training import YOURS
from oomdoctor.system.catalogue import find_machine
from oomdoctor.system.price_file import read_prices

METHODS: tuple[Method, ...] = ("full", "lora", "qlora")


def card_plan(
    card: Card,
    rows: tuple[ProbeResult, ...],
    request: SurveyRequest,
    remedies: tuple[PlanRemedy, ...] = (),
) -> CardPlan:
    """The card with its picks; none if the rows are not a ladder."""
    plan = request.plan
    fewest = plan.fewest if plan is not None else None
    ranks = request.most_gpus() if fewest is None else fewest.high
    is_ladder = plan is None or plan.ranks
    none = CardPicks(None, None, None)
    own = next((pick(row) for row in rows if row.label == YOURS), None) if is_ladder else None
    per_hour = price_of(card.name, request.plan.prices if request.plan is not None else None)
    return CardPlan(
        **shared(of_ranks(card, ranks), CardPlan),
        compute_capability=card.facts.compute_capability if card.facts else None,
        fitting=sum(row.surely_fits for row in rows),
        rungs=len(rows),
        picks=with_costs(_picks(rows, request), per_hour) if is_ladder else none,
        price_per_hour=per_hour,
        remedies=remedies,
        yours=own,
        borderline=sum(row.borderline for row in rows),
    )


def _picks(rows: tuple[ProbeResult, ...], request: SurveyRequest) -> CardPicks:
    by_key = {row.key: row for row in rows}
    picks = rank(rows, request.rank_by).picks
    by_method = {}
    for method in METHODS:
        best = by_key.get(getattr(picks, method) or "")
        best = best or _borderline(rows, method) or nearest(rows, method)
        by_method[method] = pick(best) if best is not None else None
    return CardPicks(**by_method)


def _borderline(rows: tuple[ProbeResult, ...], method: str) -> ProbeResult | None:
    """The borderline rung of a method that needs the least."""
    near = [row for row in rows if row.borderline and row.config.method == method]
    return min(near, key=lambda row: row.deciding_peak_bytes() or 0, default=None)


def nearest(rows: tuple[ProbeResult, ...], method: str) -> ProbeResult | None:
    """The rung of a method that is short by the least, among those where it is known.

    A simulated rung goes before one with only a lower bound, which always seems short by less.
    """
    missed = [r for r in rows if r.config.method == method and r.missed_by_bytes is not None]
    return min(missed, key=lambda r: (_by_formula(r), r.missed_by_bytes or 0), default=None)


def _by_formula(row: ProbeResult) -> bool:
    """Whether the only figure for what a rung needs is a lower bound."""
    return row.missed_by_bytes is not None and row.measurement is None


def pick(row: ProbeResult) -> CardPick:
    """What the line of a card shows of a rung; its price is added later."""
    own = shared(row, CardPick)
    return CardPick(
        **own, fits=row.surely_fits, by_formula=_by_formula(row), world_size=row.config.world_size
    )


def price_list(path: Path) -> PriceList:
    """The prices of a file, its names read as `--gpu` reads them.

    The price of a rented machine is shared by its GPUs.

    Raises:
        ValueError: the file is not a list of prices, or it names no known card.
    """
    file = read_prices(path)
    cheapest: dict[str, CardPrice] = {}
    unknown, repeated = [], []
    for row in file.rows:
        try:
            card = card_named(row.name, 0.0).name
        except ValueError:
            unknown.append(row.name)
            continue
        if card in cheapest:
            repeated.append(card)
        machine = find_machine(row.name)
        per_hour = row.per_hour / (machine.gpus if machine is not None else 1)
        if card not in cheapest or per_hour < cheapest[card].per_hour:
            cheapest[card] = CardPrice(card, per_hour, row.name)
    if not cheapest:
        raise ValueError(
            f"{path}: {', '.join(unknown[:3])} is not a card that `oomdoctor gpus` lists"
        )
    return PriceList(
        source=str(path),
        currency=file.currency,
        prices=tuple(cheapest.values()),
        unknown=tuple(dict.fromkeys(unknown)),
        repeated=tuple(dict.fromkeys(repeated)),
        examples=file.examples,
    )


def price_of(card: str, prices: PriceList | None) -> float | None:
    """The price of an hour of the card; None if the list does not have it."""
    listed = prices.prices if prices is not None else ()
    return next((price.per_hour for price in listed if price.card == card), None)


def with_costs(picks: CardPicks, per_hour: float | None) -> CardPicks:
    """The picks with their costs, for those that have a speed."""
    return CardPicks(
        *(_with_cost(pick, per_hour) for pick in (picks.full, picks.lora, picks.qlora))
    )


def _with_cost(pick: CardPick | None, per_hour: float | None) -> CardPick | None:
    if pick is None or per_hour is None or not pick.fits or not pick.tokens_per_s:
        return pick
    spread, own = pick.tokens_per_s_spread, pick.training_time
    likely = rent(1e6 / pick.tokens_per_s, per_hour, pick.world_size)
    return replace(
        pick,
        own_data_cost=None if own is None else rent(own.total_s, per_hour, pick.world_size),
        cost_per_million_tokens=likely,
        cost_per_million_tokens_low=None if spread is None else likely / (1 + spread),
        cost_per_million_tokens_high=None
        if spread is None or spread >= 1
        else likely / (1 - spread),
    )
