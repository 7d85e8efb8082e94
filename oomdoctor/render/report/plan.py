"""What only a plan has: one row a card, how peaks grow, and a rung taken apart."""

from __future__ import annotations

from oomdoctor.records.plan import CardPick, CardPlan, SweepAnswer, SweepLine, SweptPeak
from oomdoctor.records.report import Report
from oomdoctor.render.blocks import Block, Column, Grid, Note, Section
from oomdoctor.render.report.why import why_sections
from oomdoctor.render.words import SWEPT_WORDS
from oomdoctor.units import DASH, format_bytes, format_rate

_SWEEP_LEGEND = (
    "(in brackets): does not fit. A size is the least that the device has to give: tensors and "
    "context. crosses at: where the straight line from the last value that fits to the next one "
    "meets what is usable."
)


def plan_sections(report: Report, *, verbose: bool) -> list[Section]:
    """The sections of a plan beyond those of a survey; none for other reports."""
    sections = []
    if report.sweep is not None:
        sections += [_sweep(report.sweep, card) for card in report.cards]
        sections.append(Section("", (Note(_SWEEP_LEGEND),)))
    elif report.cards and not report.results:
        sections.append(Section("The best rung of each method, by card", tuple(_cards(report))))
    if report.why is not None:
        sections += why_sections(report.why, verbose=verbose)
    return sections


def _cards(report: Report) -> list[Block]:
    rows = tuple(
        (
            _short(card.name),
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
    legend = (
        "memory: as sold. A cell has the rung, micro-batch x accumulation steps and the estimated "
        "tokens/s; or what the leanest rung of the method lacks; at least that, "
        "where no rung could be simulated."
    )
    return [Grid(columns, rows), Note(legend)]


def _pick(pick: CardPick | None) -> str:
    if pick is None:
        return DASH
    if not pick.fits:
        least = "at least " if pick.by_formula else ""
        return f"no, lacks {least}{format_bytes(pick.missed_by_bytes)}"
    batch = f"{pick.micro_batch_size} x {pick.gradient_accumulation_steps}"
    rate = f", ~{format_rate(pick.tokens_per_s)}/s" if pick.tokens_per_s is not None else ""
    return f"{pick.label}, {batch}{rate}"


def _short(name: str) -> str:
    """A card's name without the words that all of them have; `--gpu` takes it like that."""
    return name.removeprefix("NVIDIA ").removeprefix("GeForce ")


def _sweep(sweep: SweepAnswer, card: CardPlan) -> Section:
    lines = [line for line in sweep.lines if line.card == card.name]
    rows = tuple(
        (line.label, _up_to(line), _crossing(line), *map(_peak, line.peaks)) for line in lines
    )
    last = len(sweep.values)
    columns = (
        Column("rung"),
        Column("fits up to", 1, right=True, detail="fits up to {}", tone=True),
        Column("crosses at", 2, right=True, detail="crosses at {}"),
        *(
            Column(f"{value:,}", last - place + 2, right=True, detail=f"{value:,}: {{}}")
            for place, value in enumerate(sweep.values)
        ),
    )
    sizes = {line.micro_batch_size for line in lines if line.micro_batch_size is not None}
    at = f", at micro-batch size {', '.join(map(str, sorted(sizes)))}" if sizes else ""
    title = (
        f"What is needed by {SWEPT_WORDS[sweep.key]} on {_short(card.name)}, "
        f"{format_bytes(card.usable_bytes)} usable{at}"
    )
    blocks: list[Block] = [Grid(columns, rows)]
    reasons = dict.fromkeys(f"{line.label}: {line.reason}" for line in lines if line.reason)
    blocks += [Note(reason, "normal") for reason in reasons]
    return Section(title, tuple(blocks))


def _up_to(line: SweepLine) -> str:
    if line.largest_fitting is not None:
        return f"{line.largest_fitting:,}"
    return "none" if any(peak.fits is False for peak in line.peaks) else DASH


def _crossing(line: SweepLine) -> str:
    return f"~{line.crossed_at:,}" if line.crossed_at is not None else DASH


def _peak(peak: SweptPeak) -> str:
    text = format_bytes(peak.least_bytes)
    return f"({text})" if peak.fits is False else text
