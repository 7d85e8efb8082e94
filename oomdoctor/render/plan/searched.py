"""What a plan searched along one setting: --sweep, --solve and --min, a table a card for each."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from oomdoctor.records.report.plan import CardPlan, SweepAnswer, SweepLine, SweptPeak
from oomdoctor.records.report.searched import FewestAnswer, FewestLine, SolveAnswer, SolveLine
from oomdoctor.render.blocks import Column, Grid, Note, Section
from oomdoctor.render.words import SWEPT_WORDS, card_name
from oomdoctor.units import DASH, format_bytes

_FEWEST = (
    Column("config"),
    Column("GPUs", 1, right=True, detail="{} GPUs", tone=True),
    Column("peak/GPU", 2, right=True, detail="peak {} on each"),
    Column("batch", 5, right=True, detail="effective batch {}"),
    Column("fewer", 4, right=True, detail="on {}"),
    Column("short by", 3, right=True, detail="short by {}"),
)
_UP_TO = Column("fits up to", 1, right=True, detail="fits up to {}", tone=True)
_SOLVED = (
    Column("config"),
    _UP_TO,
    Column("peak", 2, right=True, detail="peak {}"),
    Column("next", 4, right=True, detail="next {}"),
    Column("short by", 3, right=True, detail="short by {}"),
    Column("limited by", 5, wraps=True, detail="limited by {}"),
)
_SWEPT = (
    "(brackets): does not fit; the size is what it needs on a larger card. The limit is the "
    "largest value that fits, found between these values as --solve does: near it the allocator "
    "gives memory back."
)
_BORDERLINE = " * is borderline: closer to the limit than the prediction error."


def fewest_sections(answer: FewestAnswer, cards: tuple[CardPlan, ...]) -> list[Section]:
    """The fewest GPUs on which each rung fits, then what holds for all cards."""
    sections = []
    for card in cards:
        lines = [line for line in answer.lines if line.card == card.name]
        title = f"Fewest {card_name(card.name)} ({format_bytes(card.usable_bytes)} usable each)"
        one_batch = len({line.effective_batch_size for line in lines} - {None}) < 2
        rows = tuple(_fewest_row(line, one_batch=one_batch) for line in lines)
        sections.append(Section(title + _sizes(lines), (Grid(_FEWEST, rows),)))
    with_count = [line for line in answer.lines if line.gpus is not None]
    reasons = _reasons(line for line in answer.lines if line.gpus is None)
    notes = (
        ["With the next fewer GPUs, each is short by the size that is given."] if with_count else []
    )
    if len({line.effective_batch_size for line in with_count}) > 1:
        notes.append("The effective batch size rises to the next multiple of the GPUs.")
    simulated = [line.label for line in with_count if line.evidence == "predicted"]
    if simulated and len(simulated) < len(with_count):
        notes.append(f"Simulated: {', '.join(dict.fromkeys(simulated))}.")
    return sections + _below(reasons, notes)


def solve_sections(answer: SolveAnswer, cards: tuple[CardPlan, ...]) -> list[Section]:
    """The largest value of the setting that fits, then what holds for all cards."""
    sections = []
    for card in cards:
        lines = [line for line in answer.lines if line.card == card.name]
        title = f"Largest {SWEPT_WORDS[answer.key]}{_on(card)}"
        title += _sizes(lines) if answer.key != "micro_batch_size" else ""
        sections.append(Section(title, (Grid(_SOLVED, tuple(map(_solved_row, lines))),)))
    with_value = [line for line in answer.lines if line.largest is not None]
    reasons = _reasons(
        line for line in answer.lines if line.largest is None and line.next_missed_by_bytes is None
    )
    notes = []
    if with_value:
        has_next = any(line.next_value is not None for line in with_value)
        near = any(line.next_borderline for line in with_value)
        after = ", and so was the next one up, which does not fit" * has_next
        notes.append(f"Each value that fits was simulated{after}{' or is borderline' * near}.")
    if answer.key == "micro_batch_size":
        notes.append("The effective batch size rises to the next multiple of the micro-batch size.")
    if answer.key == "completion_length":
        notes.append(
            "Prompts keep their length. With this value in a file, pass --seq-len, the sum of both."
        )
    return sections + _below(reasons, notes)


def sweep_sections(sweep: SweepAnswer, cards: tuple[CardPlan, ...]) -> list[Section]:
    """How the memory of each rung grows with the setting, then what holds for all cards."""
    named = (Column("config"), _UP_TO, Column("limit", 2, right=True, detail="limit {}"))
    sections = []
    for card in cards:
        lines = [line for line in sweep.lines if line.card == card.name]
        places = _by_distance(sweep.values, lines)
        columns = named + tuple(
            Column(f"{value:,}", 3 + places[value], right=True, detail=f"{value:,}: {{}}")
            for value in sweep.values
        )
        title = f"Memory by {SWEPT_WORDS[sweep.key]}{_on(card)}{_sizes(lines)}"
        sections.append(Section(title, (Grid(columns, tuple(map(_swept_row, lines))),)))
    near = any(peak.borderline for line in sweep.lines for peak in line.peaks)
    return sections + _below(_not_simulated(sweep, cards), [_SWEPT + _BORDERLINE * near])


def _by_distance(values: Sequence[int], lines: Sequence[SweepLine]) -> dict[int, int]:
    """The place of each value, those first between which most rungs reach their limit.

    A rung that fits at all values or at none says less: its limit is beyond the first or the last.
    """
    distances = dict.fromkeys(values, 0.0)
    for line in lines:
        if line.reason is not None:
            continue
        fitting = -1 if line.largest_fitting is None else values.index(line.largest_fitting)
        weight = 1.0 if 0 <= fitting < len(values) - 1 else 0.01
        for at, value in enumerate(values):
            distances[value] += weight * abs(at - fitting - 0.5)
    return {value: place for place, value in enumerate(sorted(values, key=distances.__getitem__))}


def _on(card: CardPlan) -> str:
    return f" on {card_name(card.name)} ({format_bytes(card.usable_bytes)} usable)"


def _sizes(lines: Sequence[FewestLine | SolveLine | SweepLine]) -> str:
    """`, micro-batch size 1, 2`: those that were tried; empty if none is known."""
    sizes = sorted({line.micro_batch_size for line in lines if line.micro_batch_size is not None})
    return f", micro-batch size {', '.join(map(str, sizes))}" if sizes else ""


def _reasons(lines: Iterable[FewestLine | SolveLine]) -> list[str]:
    """The reasons of rungs about which the tables say nothing, once for all cards."""
    reasons: dict[str, dict[str, None]] = {}
    for line in lines:
        if line.reason:
            reasons.setdefault(line.reason, {})[line.label] = None
    return [f"{', '.join(labels)}: {reason}" for reason, labels in reasons.items()]


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


def _below(reasons: Sequence[str], notes: Sequence[str]) -> list[Section]:
    blocks = (*(Note(text, "normal") for text in reasons), *map(Note, notes))
    return [Section("", blocks)] if blocks else []


def _fewest_row(line: FewestLine, *, one_batch: bool) -> tuple[str, ...]:
    surely_none = line.gpus is None and line.fewer_missed_by_bytes is not None
    exact = any(
        tried.gpus == line.fewer and tried.peak_device_bytes is not None for tried in line.tries
    )
    return (
        line.label,
        "none" if surely_none else f"{line.gpus or DASH}",
        format_bytes(line.peak_device_bytes),
        "" if one_batch else f"{line.effective_batch_size or DASH}",
        f"{line.fewer or DASH}",
        _short_by(line.fewer_missed_by_bytes, exact=exact),
    )


def _solved_row(line: SolveLine) -> tuple[str, ...]:
    none = line.next_borderline or line.next_missed_by_bytes is not None
    exact = line.next_peak_device_bytes is not None
    return (
        line.label,
        _value(line.largest, none=none),
        format_bytes(line.peak_device_bytes),
        _value(line.next_value),
        "borderline" if line.next_borderline else _short_by(line.next_missed_by_bytes, exact=exact),
        line.limited_by or "",
    )


def _swept_row(line: SweepLine) -> tuple[str, ...]:
    none = any(peak.fits is False for peak in line.peaks)
    reach = _value(line.largest_fitting, none=none)
    return (line.label, reach, _value(line.crossed_at), *map(_peak, line.peaks))


def _value(value: int | None, *, none: bool = False) -> str:
    """A value of the setting; `none` says that it is known that there is none."""
    return f"{value:,}" if value is not None else "none" if none else DASH


def _short_by(missed: int | None, *, exact: bool) -> str:
    return DASH if missed is None else f"{'' if exact else 'at least '}{format_bytes(missed)}"


def _peak(peak: SweptPeak) -> str:
    size = peak.peak_device_bytes
    text = format_bytes(size if size is not None else peak.least_bytes)  # an older report has none
    if peak.borderline:
        return f"{text} *"
    return f"({text})" if peak.fits is False else text
