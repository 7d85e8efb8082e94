"""The order of the cards of a plan: those on which something fits first, then as was asked for."""

from __future__ import annotations

import math
import re
from collections.abc import Callable

from oomdoctor.records.planned.plan import CardOrder, CardPick, CardPlan, PlanRequest


def in_order(cards: tuple[CardPlan, ...], plan: PlanRequest) -> tuple[CardPlan, ...]:
    """The cards of a plan as its report lists them; without an order, by memory."""
    if plan.sort is None:
        return cards
    place = _PLACES[plan.sort]
    return tuple(sorted(cards, key=lambda card: (not card.fitting, *place(card), card.name)))


def _fitting(card: CardPlan) -> list[CardPick]:
    picks = (card.picks.full, card.picks.lora, card.picks.qlora)
    return [pick for pick in picks if pick is not None and pick.fits]


def _by_speed(card: CardPlan) -> tuple[float, ...]:
    """The fastest first; then what has no speed, and what does not fit, the largest first."""
    fastest = max((pick.tokens_per_s or 0.0 for pick in _fitting(card)), default=0.0)
    return -fastest, -card.memory_bytes, -card.total_bytes


def _by_memory(card: CardPlan) -> tuple[float, ...]:
    return card.memory_bytes, card.total_bytes


def _by_cost(card: CardPlan) -> tuple[float, ...]:
    """The cheapest million tokens first; then cards without a price or a speed, by speed."""
    costs = [pick.cost_per_million_tokens for pick in _fitting(card)]
    known = [cost for cost in costs if cost is not None]
    return min(known, default=math.inf), *_by_speed(card)


def _by_name(card: CardPlan) -> tuple[str, ...]:
    """By name; numbers count as numbers: an A2 is before an A10."""
    parts = re.split(r"(\d+)", card.name.lower())
    return tuple(part.zfill(8) if part.isdigit() else part for part in parts)


_PLACES: dict[CardOrder, Callable[[CardPlan], tuple[float, ...] | tuple[str, ...]]] = {
    "speed": _by_speed,
    "memory": _by_memory,
    "name": _by_name,
    "cost": _by_cost,
}
