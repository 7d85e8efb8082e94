"""What a cell says about the best rung of a method on a card, as detailed as there is room."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from enum import IntEnum

from oomdoctor.records.planned.plan import CardPick, CardPlan
from oomdoctor.render.words import money
from oomdoctor.units import DASH, format_bytes, format_rate, format_seconds

METHODS = ("full", "lora", "qlora")


class Detail(IntEnum):
    """How much a table says, from everything to the least."""

    LABEL = 0
    """The whole label of each rung, and its batch."""
    BATCH = 1
    """How a label differs from the usual one of its column, and the micro-batch size."""
    RUNG = 2
    """The same without the micro-batch size and the card's price."""
    SPEED = 3
    """No rung."""
    NAME = 4
    """Neither the rung nor the card's memory."""


def pick_of(card: CardPlan, method: str) -> CardPick | None:
    """The pick of a method, by its name."""
    pick: CardPick | None = getattr(card.picks, method)
    return pick


def own_time(pick: CardPick) -> str:
    """The time for the user's own data: `~2 h 40 min`; empty if it is unknown or not asked for."""
    own = pick.training_time
    return "" if own is None or own.total_s is None else f"~{format_seconds(own.total_s)}"


def planned_methods(cards: Sequence[CardPlan]) -> list[str]:
    """The methods of which some card has a rung to show; all of them if none has."""
    found = [name for name in METHODS if any(pick_of(card, name) for card in cards)]
    return found or list(METHODS)


class Cells:
    """The cells of a table.

    Invariant: `bases` are the usual labels without additions, one a method that fits somewhere.
    """

    def __init__(self, cards: Sequence[CardPlan], detail: Detail, currency: str) -> None:
        self.detail, self._currency = detail, currency
        fitting = {name: _fitting(cards, name) for name in METHODS}
        self.bases = {name: _base(picks) for name, picks in fitting.items() if picks}
        self._planned = planned_methods(cards)

    def cell(self, card: CardPlan, method: str) -> str:
        """The best rung of a method, or the memory that the smallest is short by.

        Empty if the plan has no rung of the method, so that its column is left out.
        """
        pick = pick_of(card, method)
        if pick is None:
            return DASH if method in self._planned else ""
        if pick.borderline:
            return f"borderline: {pick.label}" if self.detail is Detail.LABEL else "borderline"
        if not pick.fits:
            least = "at least " if self.detail is Detail.LABEL else "> "
            bound = least if pick.by_formula else ""
            short = f"short by {bound}{format_bytes(pick.missed_by_bytes)}"
            change = _fits_with(card, method) if self.detail <= Detail.RUNG else None
            return short if change is None else f"{short}; fits with {change}"
        if self.detail is Detail.LABEL:
            return self._whole(pick)
        return " ".join(filter(None, self._parts(method, pick)))

    def note(self, titles: Mapping[str, str]) -> str:
        """How to read the cells of this table; empty if they say everything."""
        if self.detail is Detail.LABEL:
            return ""
        if self.detail >= Detail.SPEED:
            memory = ", and the card's memory" if self.detail is Detail.NAME else ""
            return f"Not shown at this width: the rung of each cell{memory}; see --format csv."
        bases = ", ".join(f"{base} ({titles[name]})" for name, base in self.bases.items())
        text = [f"Rungs are {bases}; a cell names what differs."] if bases else []
        if self.detail is Detail.BATCH:
            text.append("xN is the micro-batch size.")
        return " ".join(text)

    def _whole(self, pick: CardPick) -> str:
        rate = f"~{format_rate(pick.tokens_per_s)}/s" if pick.tokens_per_s is not None else ""
        batch = f"{pick.micro_batch_size} x {pick.gradient_accumulation_steps}"
        parts = (pick.label, batch, rate, own_time(pick), self._cost(pick))
        return ", ".join(filter(None, parts))

    def _parts(self, method: str, pick: CardPick) -> list[str]:
        rate = f"~{format_rate(pick.tokens_per_s)}" if pick.tokens_per_s is not None else "fits"
        rate = own_time(pick) or rate  # which says more, and there is no room for both
        batch = f"x{pick.micro_batch_size}" if self.detail is Detail.BATCH else ""
        tail = _addition(pick.label, self.bases[method]) if self.detail <= Detail.RUNG else ""
        return [rate, self._cost(pick), batch, tail]

    def _cost(self, pick: CardPick) -> str:
        cost = pick.cost_per_million_tokens
        return "" if cost is None else money(cost, self._currency)


def _fits_with(card: CardPlan, method: str) -> str | None:
    """The change with which a method was simulated to fit a card; None if there is none."""
    found = (one for one in card.remedies if one.method == method and one.basis == "simulated")
    return next((one.change for one in found), None)


def _fitting(cards: Sequence[CardPlan], method: str) -> list[CardPick]:
    picks = (pick_of(card, method) for card in cards)
    return [pick for pick in picks if pick is not None and pick.fits]


def _base(picks: Sequence[CardPick]) -> str:
    """The part of a label before its first addition that most picks share."""
    return Counter(pick.label.partition("+")[0] for pick in picks).most_common(1)[0][0]


def _addition(label: str, base: str) -> str:
    """What a label adds to the usual one: `ckpt`; of another label, what differs: `fp16+ckpt`."""
    head, plus, rest = label.partition("+")
    if head == base:
        return rest
    words, known = head.split("-"), base.split("-")
    while len(words) > 1 and known and words[0] == known[0]:
        del words[0], known[0]
    return "-".join(words) + plus + rest
