"""The fewest GPUs on which each rung fits: a table a card."""

from __future__ import annotations

from oomdoctor.records.planned.plan import CardPlan
from oomdoctor.records.planned.searched import FewestAnswer, FewestLine
from oomdoctor.render.blocks import Block, Column, Grid, Note, Section
from oomdoctor.render.words import card_name
from oomdoctor.units import DASH, format_bytes

_COLUMNS = (
    Column("rung"),
    Column("GPUs", 1, right=True, detail="{} GPUs", tone=True),
    Column("peak/GPU", 2, right=True, detail="peak {} on each"),
    Column("batch", 5, right=True, detail="effective batch {}"),
    Column("fewer", 4, right=True, detail="on {}"),
    Column("short by", 3, right=True, detail="short by {}"),
)


def fewest_sections(answer: FewestAnswer, cards: tuple[CardPlan, ...]) -> list[Section]:
    """The tables, then what holds for all of them."""
    sections = [_card(answer, card) for card in cards]
    notes: list[Block] = [Note(text, "normal") for text in _no_answer(answer)]
    found = [line for line in answer.lines if line.gpus is not None]
    if found:
        notes.append(Note("With the next fewer GPUs, each is short by the size that is given."))
    if len({line.effective_batch_size for line in found}) > 1:
        notes.append(Note("The effective batch size rises to the next multiple of the GPUs."))
    simulated = [line.label for line in found if line.evidence == "predicted"]
    if simulated and len(simulated) < len(found):
        notes.append(Note(f"Simulated: {', '.join(dict.fromkeys(simulated))}."))
    return [*sections, Section("", tuple(notes))] if notes else sections


def _card(answer: FewestAnswer, card: CardPlan) -> Section:
    lines = [line for line in answer.lines if line.card == card.name]
    sizes = sorted({line.micro_batch_size for line in lines if line.micro_batch_size is not None})
    title = f"Fewest {card_name(card.name)} ({format_bytes(card.usable_bytes)} usable each)"
    if sizes:
        title += f", micro-batch size {', '.join(map(str, sizes))}"
    batches = {line.effective_batch_size for line in lines}
    rows = tuple(_row(line, one_batch=len(batches - {None}) < 2) for line in lines)
    return Section(title, (Grid(_COLUMNS, rows),))


def _row(line: FewestLine, *, one_batch: bool) -> tuple[str, ...]:
    batch = line.effective_batch_size
    return (
        line.label,
        "none" if line.gpus is None and _is_known(line) else f"{line.gpus or DASH}",
        format_bytes(line.peak_device_bytes),
        "" if one_batch else f"{batch or DASH}",
        f"{line.fewer or DASH}",
        _short_by(line),
    )


def _is_known(line: FewestLine) -> bool:
    """Whether the rung certainly fits on none of the numbers."""
    return line.fewer_missed_by_bytes is not None


def _short_by(line: FewestLine) -> str:
    if line.fewer_missed_by_bytes is None:
        return DASH
    exact = any(one.gpus == line.fewer and one.peak_device_bytes is not None for one in line.tries)
    return f"{'' if exact else 'at least '}{format_bytes(line.fewer_missed_by_bytes)}"


def _no_answer(answer: FewestAnswer) -> list[str]:
    """The reasons of the rungs without an answer, once for all of them."""
    reasons: dict[str, list[str]] = {}
    for line in answer.lines:
        if line.gpus is None and line.reason and line.label not in reasons.get(line.reason, []):
            reasons.setdefault(line.reason, []).append(line.label)
    return [f"{', '.join(labels)}: {reason}" for reason, labels in reasons.items()]
