"""What only a plan has: one row a card, how peaks grow, and a rung taken apart."""

from __future__ import annotations

from oomdoctor.records.plan import CardPick
from oomdoctor.records.report import Report
from oomdoctor.render.blocks import Block, Column, Grid, Note, Section
from oomdoctor.render.report.sweep import sweep_sections
from oomdoctor.render.report.why import why_sections
from oomdoctor.render.words import card_name
from oomdoctor.units import DASH, format_bytes, format_rate

_LEGEND = (
    "A cell shows the best rung, its batch and its estimated tokens/s. Where nothing fits, it "
    "shows how much memory the smallest rung is short by."
)


def plan_sections(report: Report, *, verbose: bool) -> list[Section]:
    """The sections that a survey does not have; none for other reports."""
    sections = []
    if report.sweep is not None:
        sections += sweep_sections(report.sweep, report.cards)
    elif report.cards and not report.results:
        sections.append(Section("Best rung of each method", tuple(_cards(report))))
    if report.why is not None:
        sections += why_sections(report.why, verbose=verbose)
    return sections


def _cards(report: Report) -> list[Block]:
    rows = tuple(
        (
            card_name(card.name),
            format_bytes(card.memory_bytes),
            _pick(card.picks.full),
            _pick(card.picks.lora),
            _pick(card.picks.qlora),
        )
        for card in report.cards
    )
    columns = (
        Column("card"),
        Column("memory", right=True),
        Column("full fine-tuning", 1, detail="full: {}", tone=True),
        Column("LoRA", 2, detail="LoRA: {}", tone=True),
        Column("QLoRA", 3, detail="QLoRA: {}", tone=True),
    )
    return [Grid(columns, rows), Note(_LEGEND)]


def _pick(pick: CardPick | None) -> str:
    if pick is None:
        return DASH
    if not pick.fits:
        least = "at least " if pick.by_formula else ""
        return f"short by {least}{format_bytes(pick.missed_by_bytes)}"
    batch = f"{pick.micro_batch_size} x {pick.gradient_accumulation_steps}"
    rate = f", ~{format_rate(pick.tokens_per_s)}/s" if pick.tokens_per_s is not None else ""
    return f"{pick.label}, {batch}{rate}"
