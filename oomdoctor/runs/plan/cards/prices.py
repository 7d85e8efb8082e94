"""What an hour of the cards costs: the names of a price file as cards, and the cost of a pick."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from oomdoctor.records.planned.plan import CardPick, CardPicks, CardPrice, PriceList
from oomdoctor.runs.devices.cards import card_named
from oomdoctor.system.price_file import read_prices

_PER_MILLION_IN_HOURS = 1e6 / 3600.0


def price_list(path: Path) -> PriceList:
    """The prices of a file, its names read as `--gpu` reads them.

    Raises:
        ValueError: the file is not a list of prices, or it names no known card.
    """
    file = read_prices(path)
    found: dict[str, CardPrice] = {}
    unknown, repeated = [], []
    for row in file.rows:
        try:
            card = card_named(row.name, 0.0).name
        except ValueError:
            unknown.append(row.name)
            continue
        if card in found:
            repeated.append(card)
        if card not in found or row.per_hour < found[card].per_hour:
            found[card] = CardPrice(card, row.per_hour, row.name)
    if not found:
        raise ValueError(
            f"{path}: {', '.join(unknown[:3])} is not a card that `oomdoctor gpus` lists"
        )
    return PriceList(
        source=str(path),
        currency=file.currency,
        prices=tuple(found.values()),
        unknown=tuple(dict.fromkeys(unknown)),
        repeated=tuple(dict.fromkeys(repeated)),
    )


def price_of(card: str, prices: PriceList | None) -> float | None:
    """The price of an hour of the card; None if the list does not have it."""
    known = prices.prices if prices is not None else ()
    return next((price.per_hour for price in known if price.card == card), None)


def with_costs(picks: CardPicks, per_hour: float | None) -> CardPicks:
    """The picks with the cost of a million tokens, for those that have a speed."""
    return CardPicks(
        *(_with_cost(pick, per_hour) for pick in (picks.full, picks.lora, picks.qlora))
    )


def _with_cost(pick: CardPick | None, per_hour: float | None) -> CardPick | None:
    if pick is None or per_hour is None or not pick.fits or not pick.tokens_per_s:
        return pick
    spread = pick.tokens_per_s_spread
    likely = per_hour * _PER_MILLION_IN_HOURS / pick.tokens_per_s
    return replace(
        pick,
        cost_per_million_tokens=likely,
        cost_per_million_tokens_low=None if spread is None else likely / (1 + spread),
        cost_per_million_tokens_high=None
        if spread is None or spread >= 1
        else likely / (1 - spread),
    )
