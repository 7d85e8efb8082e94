"""How the memory of each rung grows with the swept setting: a table a card."""

from __future__ import annotations

from oomdoctor.records.planned.plan import CardPlan, SweepAnswer, SweepLine, SweptPeak
from oomdoctor.render.blocks import Column, Grid, Note, Section
from oomdoctor.render.words import SWEPT_WORDS, card_name
from oomdoctor.units import DASH, format_bytes

_LEGEND = (
    "(brackets): does not fit; the size is what it needs on a larger card. The limit is the "
    "largest value that fits, found as --solve does: near it the allocator gives memory back."
)
_BORDERLINE = " * is borderline: closer to the limit than the prediction error."


def sweep_sections(sweep: SweepAnswer, cards: tuple[CardPlan, ...]) -> list[Section]:
    """The tables, then what holds for all of them."""
    sections = [_card(sweep, card) for card in cards]
    near = any(peak.borderline for line in sweep.lines for peak in line.peaks)
    below = [Note(text, "normal") for text in _not_simulated(sweep, cards)]
    below.append(Note(_LEGEND + _BORDERLINE * near))
    return [*sections, Section("", tuple(below))]


def _not_simulated(sweep: SweepAnswer, cards: tuple[CardPlan, ...]) -> list[str]:
    """The reasons, with their cards where they are not the same on all."""
    where: dict[tuple[str, str], list[str]] = {}
    for line in sweep.lines:
        if line.reason:
            where.setdefault((line.label, line.reason), []).append(card_name(line.card))
    texts = []
    for (label, reason), names in where.items():
        some = f" for {', '.join(names)}" if len(names) < len(cards) else ""
        texts.append(f"{label} was not simulated{some}: {reason}")
    return texts


def _card(sweep: SweepAnswer, card: CardPlan) -> Section:
    lines = [line for line in sweep.lines if line.card == card.name]
    rows = tuple(
        (line.label, _up_to(line), _crossing(line), *map(_peak, line.peaks)) for line in lines
    )
    last = len(sweep.values)
    columns = (
        Column("rung"),
        Column("fits up to", 1, right=True, detail="fits up to {}", tone=True),
        Column("limit", 2, right=True, detail="limit {}"),
        *(
            Column(f"{value:,}", last - place + 2, right=True, detail=f"{value:,}: {{}}")
            for place, value in enumerate(sweep.values)
        ),
    )
    sizes = sorted({line.micro_batch_size for line in lines if line.micro_batch_size is not None})
    at = f", micro-batch size {', '.join(map(str, sizes))}" if sizes else ""
    title = (
        f"Memory by {SWEPT_WORDS[sweep.key]} on {card_name(card.name)} "
        f"({format_bytes(card.usable_bytes)} usable){at}"
    )
    return Section(title, (Grid(columns, rows),))


def _up_to(line: SweepLine) -> str:
    if line.largest_fitting is not None:
        return f"{line.largest_fitting:,}"
    return "none" if any(peak.fits is False for peak in line.peaks) else DASH


def _crossing(line: SweepLine) -> str:
    return f"{line.crossed_at:,}" if line.crossed_at is not None else DASH


def _peak(peak: SweptPeak) -> str:
    size = peak.peak_device_bytes
    text = format_bytes(size if size is not None else peak.least_bytes)  # an older report has none
    if peak.borderline:
        return f"{text} *"
    return f"({text})" if peak.fits is False else text
