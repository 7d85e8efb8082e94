"""Cards that give the same answer share a row, so that all known cards fit on a page."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from oomdoctor.records.planned.plan import CardPick, CardPlan
from oomdoctor.render.report.plan.card_cells import METHODS, pick_of
from oomdoctor.render.words import card_name
from oomdoctor.units import format_percent

# A table is read as a whole only if it is not longer than this.
_MOST_ROWS = 58
# How far the speeds of the cards of a row may differ; the first that saves enough rows.
_TOLERANCES = (0.02, 0.05, 0.10, 0.15, 0.20, 0.30, 0.50)


@dataclass(frozen=True, slots=True)
class Group:
    """The first card of a row, which the row shows, and the others that it stands for."""

    card: CardPlan
    others: tuple[CardPlan, ...]


def few(cards: Sequence[CardPlan]) -> tuple[list[Group], str]:
    """The rows for the cards, in their order, and a note that names the cards without a row."""
    for tolerance in _TOLERANCES:
        groups = _grouped(cards, tolerance)
        if len(groups) <= _MOST_ROWS:
            break
    else:
        tolerance, groups = math.inf, _grouped(cards, math.inf)
    return groups, _note(groups, tolerance)


def _grouped(cards: Sequence[CardPlan], tolerance: float) -> list[Group]:
    groups: list[list[CardPlan]] = []
    for card in cards:
        home = next((group for group in groups if _alike(group[0], card, tolerance)), None)
        if home is None:
            groups.append([card])
        else:
            home.append(card)
    return [Group(first, tuple(others)) for first, *others in groups]


def _alike(first: CardPlan, card: CardPlan, tolerance: float) -> bool:
    """Whether a row for the first card also answers for the other one."""
    if (first.memory_bytes, first.price_per_hour) != (card.memory_bytes, card.price_per_hour):
        return False
    return all(_same(pick_of(first, name), pick_of(card, name), tolerance) for name in METHODS)


def _same(one: CardPick | None, other: CardPick | None, tolerance: float) -> bool:
    if one is None or other is None:
        return one is other
    if not one.fits or not other.fits:
        return (one.fits, one.borderline) == (other.fits, other.borderline)
    if one.tokens_per_s is None or other.tokens_per_s is None:
        return one.tokens_per_s == other.tokens_per_s and one.label == other.label
    if math.isinf(tolerance):
        return True
    low, high = sorted((one.tokens_per_s, other.tokens_per_s))
    return one.label == other.label and high <= low * (1 + tolerance)


def _note(groups: Sequence[Group], tolerance: float) -> str:
    shared = [group for group in groups if group.others]
    if not shared:
        return ""
    told = "; ".join(
        f"{card_name(group.card.name)} = {', '.join(card_name(c.name) for c in group.others)}"
        for group in shared
    )
    like = "and methods that fit" if math.isinf(tolerance) else "and rungs"
    within = "" if math.isinf(tolerance) else f", and speeds within {format_percent(tolerance)}"
    return f"(+N) stands for N more cards with the same memory {like}{within}: {told}."
