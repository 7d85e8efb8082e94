"""The cards of a plan: a row for each with the best rung of every method, and who fits nothing."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from enum import IntEnum
from itertools import groupby
from statistics import mode

from oomdoctor.records.report.plan import CardPick, CardPlan, PlanRequest
from oomdoctor.records.report.report import Report
from oomdoctor.render.blocks import Block, Column, Grid, Note, Section, Sized
from oomdoctor.render.ladder.columns import own_data_note
from oomdoctor.render.words import METHODS, batch, card_name, card_size, counted, money
from oomdoctor.units import DASH, format_bytes, format_percent, format_rate, format_seconds


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
    planned = [name for name in METHODS if any(pick_of(card, name) for card in cards)]
    return planned or list(METHODS)


class Cells:
    """The cells of a table.

    Invariant: `bases` are the usual labels without additions, one a method that fits somewhere.
    """

    def __init__(self, cards: Sequence[CardPlan], detail: Detail, currency: str) -> None:
        self.detail, self._currency = detail, currency
        fitting = {name: _fitting(cards, [name]) for name in METHODS}
        # By method, labels up to their first addition; the most frequent is the usual one.
        heads = {name: [pick.label.partition("+")[0] for pick in fitting[name]] for name in METHODS}
        self.bases = {name: mode(each) for name, each in heads.items() if each}
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
            return f"Not shown at this width: what each cell runs{memory}; see --format csv."
        bases = ", ".join(f"{base} ({titles[name]})" for name, base in self.bases.items())
        text = [f"Configurations are {bases}; a cell names what differs."] if bases else []
        if self.detail is Detail.BATCH:
            text.append("xN is the micro-batch size.")
        return " ".join(text)

    def _whole(self, pick: CardPick) -> str:
        rate = f"~{format_rate(pick.tokens_per_s)}/s" if pick.tokens_per_s is not None else ""
        parts = (pick.label, batch(pick), rate, own_time(pick), self._cost(pick))
        return ", ".join(filter(None, parts))

    def _parts(self, method: str, pick: CardPick) -> list[str]:
        rate = f"~{format_rate(pick.tokens_per_s)}" if pick.tokens_per_s is not None else "fits"
        rate = own_time(pick) or rate  # which says more, and there is no room for both
        rows = f"x{pick.micro_batch_size}" if self.detail is Detail.BATCH else ""
        tail = _addition(pick.label, self.bases[method]) if self.detail <= Detail.RUNG else ""
        return [rate, self._cost(pick), rows, tail]

    def _cost(self, pick: CardPick) -> str:
        """The cost of the user's own data, or of a million tokens."""
        own = pick.training_time is not None
        return self.money(pick.own_data_cost if own else pick.cost_per_million_tokens)

    def money(self, amount: float | None) -> str:
        """An amount in the currency of the prices; empty if it is not known."""
        return "" if amount is None else money(amount, self._currency)


def _fits_with(card: CardPlan, method: str) -> str | None:
    """The change with which a method was simulated to fit a card; None if there is none."""
    remedies = (
        remedy
        for remedy in card.remedies
        if remedy.method == method and remedy.basis == "simulated"
    )
    return next((remedy.change for remedy in remedies), None)


def _fitting(cards: Sequence[CardPlan], methods: Iterable[str] = METHODS) -> list[CardPick]:
    """The picks that fit, card after card."""
    picks = (pick_of(card, name) for card in cards for name in methods)
    return [pick for pick in picks if pick is not None and pick.fits]


def _addition(label: str, base: str) -> str:
    """What a label adds to the usual one: `ckpt`; of another label, what differs: `fp16+ckpt`."""
    head, plus, rest = label.partition("+")
    if head == base:
        return rest
    words, usual = head.split("-"), base.split("-")
    while len(words) > 1 and usual and words[0] == usual[0]:
        del words[0], usual[0]
    return "-".join(words) + plus + rest


_TITLES = METHODS | {"full": "full fine-tuning"}
_ORDERS = {
    "speed": ", fastest card first",
    "memory": ", smallest card first",
    "name": ", by name of the card",
    "cost": ", cheapest card first",
}
_ONE_CARD = "`oomdoctor plan MODEL --gpu CARD` shows them all for one card, and what makes one fit"
# A table is read as a whole only if it is not longer than this.
_MOST_ROWS = 58
# How far the speeds of the cards of a row may differ; the first that saves enough rows.
_TOLERANCES = (0.02, 0.05, 0.10, 0.15, 0.20, 0.30, 0.50, math.inf)
Group = list[CardPlan]
"""The card that a row shows, and then the others that it stands for."""


def card_sections(report: Report) -> list[Section]:
    """The table of a plan for several cards, and what is left out of it in a line each."""
    plan = report.request.plan if report.request is not None else None
    shown, closing = _split(report.cards, plan)
    blocks: list[Block] = []
    if shown:
        blocks += [_table(shown, plan), Note(_legend(shown, plan))]
        own = own_data_note(report, _fitting(shown))
        blocks += [Note(own)] if own else []
    blocks += [Note(text, "normal") for text in closing]
    order = _ORDERS.get(plan.sort or "", "") if plan is not None and len(shown) > 1 else ""
    cost = _cost_of(shown) if plan is not None and plan.prices is not None else ""
    return [Section(f"Best configuration of each method{order}{cost}", tuple(blocks))]


def _cost_of(cards: Sequence[CardPlan]) -> str:
    """What the amounts in the table are for; empty if it has none."""
    picks = [pick for pick in _fitting(cards) if pick.cost_per_million_tokens is not None]
    own = any(pick.own_data_cost is not None for pick in picks)
    return f", cost of {'your data' if own else '1M tokens'}" if picks else ""


def _split(cards: Sequence[CardPlan], plan: PlanRequest | None) -> tuple[list[CardPlan], list[str]]:
    """The cards that get a row, as all named ones do, and sentences about the others."""
    if plan is None or not plan.all_gpus:
        return list(cards), []
    priced = [card for card in cards if card.price_per_hour is not None]
    asked = priced or list(cards)
    shown = [card for card in asked if card.fitting]
    misses = [card for card in asked if not card.fitting]
    closing = []
    if misses:
        closing.append(f"Nothing fits on {counted(len(misses), 'card')}: {_names(misses)}.")
        closing += _closest(misses)
    others = [card for card in cards if card not in asked]
    if others:
        fitting = sum(card.fitting > 0 for card in others)
        closing.append(
            f"Without a price: {counted(len(others), 'card')}; something fits on {fitting:,}."
        )
    return shown, closing


def _names(cards: Sequence[CardPlan]) -> str:
    """The cards by size: `6 GiB: GTX 1060 6GB, RTX 2060; 8 GiB: RTX 4060`."""
    ordered = sorted(cards, key=lambda card: card.memory_bytes)
    return "; ".join(
        f"{size}: {', '.join(sorted(card_name(card.name) for card in group))}"
        for size, group in groupby(ordered, key=lambda card: card_size(card.memory_bytes))
    )


def _closest(cards: Sequence[CardPlan]) -> list[str]:
    """The card that misses by the least, if no lower bound hides what it really needs."""
    misses = [
        (pick.missed_by_bytes, pick.label, card)
        for card in cards
        for name in METHODS
        if (pick := pick_of(card, name)) is not None
        and pick.missed_by_bytes is not None
        and not pick.by_formula
    ]
    if not misses:
        return []
    missed, label, card = min(misses, key=lambda miss: miss[0])
    return [f"Closest: {card_name(card.name)}, short by {format_bytes(missed)} for {label}."]


def _table(cards: Sequence[CardPlan], plan: PlanRequest | None) -> Sized:
    groups, fold = few(cards)
    currency = plan.prices.currency if plan is not None and plan.prices is not None else ""
    drawn = []
    for detail in Detail:
        cells = Cells(cards, detail, currency)
        notes = [Note(text) for text in (cells.note(METHODS), fold) if text]
        drawn.append((_grid(groups, cells, short=True), tuple(notes)))
    single = [[card] for card in cards]
    return Sized(_grid(single, Cells(cards, Detail.LABEL, currency)), tuple(drawn))


def _grid(groups: Sequence[Group], cells: Cells, *, short: bool = False) -> Grid:
    rows = tuple(
        (
            card_name(first.name) + (f" (+{len(others)})" if others else ""),
            "" if cells.detail is Detail.NAME else card_size(first.memory_bytes),
            cells.money(first.price_per_hour) if cells.detail <= Detail.BATCH else "",
            *(cells.cell(first, name) for name in METHODS),
        )
        for first, *others in groups
    )
    # Only the narrowest version may leave methods out of the table: they go below the row.
    columns = (
        Column("card"),
        Column("memory", right=True),
        Column("price/h", right=True),
        *(
            Column((METHODS if short else _TITLES)[name], place, detail=word + ": {}", tone=True)
            for place, (name, word) in enumerate(METHODS.items(), 1)
        ),
    )
    return Grid(columns, rows)


def _legend(cards: Sequence[CardPlan], plan: PlanRequest | None) -> str:
    """What a cell means, and how far off its estimates are."""
    picks = _fitting(cards)
    spreads = [p.tokens_per_s_spread for p in picks if p.tokens_per_s_spread is not None]
    parts = []
    own = any(own_time(pick) for pick in picks)
    if own:
        parts.append(f"~ is the estimated time for your data (/s: tokens/s){_off(spreads)}.")
    elif any(pick.tokens_per_s is not None for pick in picks):
        parts.append(f"~ is the estimated tokens/s{_off(spreads)}.")
    if plan is not None and plan.prices is not None:
        gpus = max((pick.world_size for pick in picks), default=1)
        whose = " of all GPUs" if gpus > 1 else ""
        what = "all of your data" if own else "1M tokens"
        parts.append(f"The cost{whose} is for {what}, with the same uncertainty.")
    if any(pick.tokens_per_s is None for pick in picks):
        parts.append("Without published rates, a card has no speed.")
    if any(pick_of(card, name) is None for card in cards for name in planned_methods(cards)):
        parts.append("A dash: not predicted.")
    return " ".join([*parts, f"{_ONE_CARD}."])


def _off(spreads: Sequence[float]) -> str:
    """The uncertainty of the estimates: `, off by up to 16%`, or a range."""
    if not spreads:
        return ""
    low, high = format_percent(min(spreads)), format_percent(max(spreads))
    return f", off by up to {high}" if low == high else f", off by {low} to {high}"


def few(cards: Sequence[CardPlan]) -> tuple[list[Group], str]:
    """The rows for the cards, in their order, and a note that names the cards without a row."""
    for tolerance in _TOLERANCES:
        groups = _grouped(cards, tolerance)
        if len(groups) <= _MOST_ROWS:
            break
    return groups, _note(groups, tolerance)


def _grouped(cards: Sequence[CardPlan], tolerance: float) -> list[Group]:
    groups: list[Group] = []
    for card in cards:
        home = next((group for group in groups if _alike(group[0], card, tolerance)), None)
        if home is None:
            groups.append([card])
        else:
            home.append(card)
    return groups


def _alike(first: CardPlan, card: CardPlan, tolerance: float) -> bool:
    """Whether a row for the first card also answers for the other one."""
    if (first.memory_bytes, first.price_per_hour) != (card.memory_bytes, card.price_per_hour):
        return False
    return all(_same(pick_of(first, name), pick_of(card, name), tolerance) for name in METHODS)


def _same(pick: CardPick | None, other: CardPick | None, tolerance: float) -> bool:
    if pick is None or other is None:
        return pick is other
    if not pick.fits or not other.fits:
        return (pick.fits, pick.borderline) == (other.fits, other.borderline)
    if pick.tokens_per_s is None or other.tokens_per_s is None:
        return pick.tokens_per_s == other.tokens_per_s and pick.label == other.label
    if math.isinf(tolerance):
        return True
    low, high = sorted((pick.tokens_per_s, other.tokens_per_s))
    return pick.label == other.label and high <= low * (1 + tolerance)


def _note(groups: Sequence[Group], tolerance: float) -> str:
    told = "; ".join(
        f"{card_name(first.name)} = {', '.join(card_name(card.name) for card in others)}"
        for first, *others in groups
        if others
    )
    if not told:
        return ""
    like = "and methods that fit" if math.isinf(tolerance) else "and configurations"
    within = "" if math.isinf(tolerance) else f", and speeds within {format_percent(tolerance)}"
    return f"(+N) stands for N more cards with the same memory {like}{within}: {told}."
