"""The largest value of one setting that fits: a table a card."""

from __future__ import annotations

from oomdoctor.records.planned.plan import CardPlan
from oomdoctor.records.planned.searched import SolveAnswer, SolveLine
from oomdoctor.render.blocks import Block, Column, Grid, Note, Section
from oomdoctor.render.words import SWEPT_WORDS, card_name
from oomdoctor.units import DASH, format_bytes

_LEGEND = "Each value that fits was simulated"
_NEXT = ", and so was the next one up, which does not fit"
_BORDERLINE = " or is borderline"


def solve_sections(answer: SolveAnswer, cards: tuple[CardPlan, ...]) -> list[Section]:
    """The tables, then what holds for all of them."""
    sections = [_card(answer, card) for card in cards]
    notes: list[Block] = [Note(text, "normal") for text in _no_answer(answer)]
    found = [line for line in answer.lines if line.largest is not None]
    if found:
        near = any(line.next_borderline for line in found)
        has_next = any(line.next_value is not None for line in found)
        notes.append(Note(f"{_LEGEND}{_NEXT * has_next}{_BORDERLINE * near}."))
    if answer.key == "micro_batch_size":
        notes.append(
            Note("The effective batch size rises to the next multiple of the micro-batch size.")
        )
    return [*sections, Section("", tuple(notes))] if notes else sections


def _no_answer(answer: SolveAnswer) -> list[str]:
    """The reasons of the rungs about which the table says nothing, once for all cards."""
    reasons: dict[str, list[str]] = {}
    for line in answer.lines:
        known = line.largest is not None or line.next_missed_by_bytes is not None
        if line.reason and not known and line.label not in reasons.get(line.reason, []):
            reasons.setdefault(line.reason, []).append(line.label)
    return [f"{', '.join(labels)}: {reason}" for reason, labels in reasons.items()]


def _card(answer: SolveAnswer, card: CardPlan) -> Section:
    lines = [line for line in answer.lines if line.card == card.name]
    word = SWEPT_WORDS[answer.key]
    grid = Grid(
        (
            Column("rung"),
            Column("fits up to", 1, right=True, detail="fits up to {}", tone=True),
            Column("peak", 2, right=True, detail="peak {}"),
            Column("next", 4, right=True, detail="next {}"),
            Column("short by", 3, right=True, detail="short by {}"),
            Column("limited by", 5, wraps=True, detail="limited by {}"),
        ),
        tuple(
            (
                line.label,
                _largest(line),
                format_bytes(line.peak_device_bytes),
                DASH if line.next_value is None else f"{line.next_value:,}",
                _short_by(line),
                line.limited_by or "",
            )
            for line in lines
        ),
    )
    title = f"Largest {word} on {card_name(card.name)} ({format_bytes(card.usable_bytes)} usable)"
    sizes = sorted({line.micro_batch_size for line in lines if line.micro_batch_size is not None})
    if answer.key != "micro_batch_size" and sizes:
        title += f", micro-batch size {', '.join(map(str, sizes))}"
    return Section(title, (grid,))


def _largest(line: SolveLine) -> str:
    if line.largest is not None:
        return f"{line.largest:,}"
    return "none" if line.next_borderline or line.next_missed_by_bytes is not None else DASH


def _short_by(line: SolveLine) -> str:
    if line.next_borderline:
        return "borderline"
    if line.next_missed_by_bytes is None:
        return DASH
    least = "" if line.next_peak_device_bytes is not None else "at least "
    return f"{least}{format_bytes(line.next_missed_by_bytes)}"
