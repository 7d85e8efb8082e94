"""What only a plan has: checks on the emulated card, cards, searches, and a rung taken apart."""

from __future__ import annotations

from oomdoctor.records.facts.categories import CATEGORIES, TABLE
from oomdoctor.records.facts.phases import STEPS
from oomdoctor.records.job.result import OUTCOME_WORDS, ProbeResult
from oomdoctor.records.job.simulation import PhasePeak
from oomdoctor.records.report.plan import Faster, FasterChange, FormulaView, Why
from oomdoctor.records.report.report import Report
from oomdoctor.render.blocks import (
    Block,
    Cells,
    Column,
    Facts,
    Grid,
    Look,
    Note,
    Section,
    Verbatim,
    figures,
    table_of,
)
from oomdoctor.render.charts.time_chart import time_says
from oomdoctor.render.charts.time_parts import step_bar, step_legend, step_table
from oomdoctor.render.ladder.header import is_checked
from oomdoctor.render.plan.cards import card_sections
from oomdoctor.render.plan.searched import fewest_sections, solve_sections, sweep_sections
from oomdoctor.render.words import batch
from oomdoctor.units import DASH, format_bytes, format_count, format_percent, format_rate

_OUTSIDE = {"inputs": "the batch", "logits": "the loss"}  # tensors that no module made
_NEGLIGIBLE = 0.01  # share of the peak; a category that never exceeds it has no column


def why_sections(why: Why, look: Look) -> list[Section]:
    """What the peak and the step of a rung consist of; verbose pages have all largest tensors."""
    peak = max(why.phases, key=lambda phase: phase.peak_allocated_bytes)
    title = f"Why {why.label} needs {format_bytes(why.peak_device_bytes)}"
    sections = [
        Section(title, (Facts(tuple(_sum(why))),)),
        Section("Peak memory by phase", (_phases(why.phases, peak),)),
    ]
    if peak.largest:  # unknown with ZeRO
        title = f"Largest tensors at the peak ({_moment(peak)})"
        sections.append(Section(title, (_largest(peak),)))
    sections.append(
        Section("Compared with a per-parameter formula", tuple(_formula(why.formula, why)))
    )
    sections += _time(why, look)
    if look.verbose:
        sections += [
            Section(f"Largest tensors ({_moment(phase)})", (_largest(phase),))
            for phase in why.phases
            if phase is not peak and phase.largest
        ]
    return sections


def _moment(phase: PhasePeak) -> str:
    step = STEPS.get(phase.step, phase.step)
    return phase.phase if phase.step == phase.phase else f"{phase.phase}, {step}"


def _sum(why: Why) -> list[tuple[str, str]]:
    pairs = [
        (
            "tensors",
            f"{format_bytes(why.peak_allocated_bytes)} at micro-batch size "
            f"{why.micro_batch_size}, as rounded up by the allocator",
        )
    ]
    if why.peak_reserved_bytes is not None:
        held = why.peak_reserved_bytes - why.peak_allocated_bytes
        pairs.append(
            ("reserved", f"{format_bytes(held)} more, held by the allocator but not in use")
        )
    pairs.append(("context", f"about {format_bytes(why.context_bytes)} for CUDA and its libraries"))
    return pairs


def _phases(phases: tuple[PhasePeak, ...], peak: PhasePeak) -> Grid:
    least = peak.peak_allocated_bytes * _NEGLIGIBLE
    categories = [
        (name, TABLE[name].words)
        for name in CATEGORIES
        if max(phase.by_category.get(name, 0) for phase in phases) > least
    ]
    rows = tuple(
        (
            f"{_moment(phase)} (peak)" if phase is peak else _moment(phase),
            format_bytes(phase.peak_allocated_bytes),
            *(format_bytes(phase.by_category.get(name) or None) for name, _ in categories),
        )
        for phase in phases
    )
    columns = (
        Column("phase"),
        Column("peak", right=True),
        *(figures(word, place) for place, (_, word) in enumerate(categories, 1)),
    )
    return Grid(columns, rows)


def _largest(phase: PhasePeak) -> Grid:
    rows = tuple(
        (
            format_bytes(entry.size_bytes * entry.count),
            f"{entry.count:,} x {format_bytes(entry.size_bytes)}",
            entry.category,
            entry.operator.removeprefix("aten::") or DASH,
            entry.module or _OUTSIDE.get(entry.category, DASH),
        )
        for entry in phase.largest
    )
    columns = (
        Column("total", right=True),
        Column("tensors", 1, right=True, detail="{}"),
        Column("category"),
        Column("operator", 2, detail="by {}"),
        Column("module", 3, detail="in {}"),
    )
    return Grid(columns, rows)


def _time(why: Why, look: Look) -> list[Section]:
    """Where the time of a step goes, and what would make it faster."""
    if why.step is None:
        return []
    blocks: list[Block] = [Note(time_says(why.step, why.mfu), "normal"), step_table(why.step)]
    if not look.drawn:
        blocks += [Verbatim((step_bar(why.step),)), Note(step_legend(why.step))]
    sections = [Section("Where the time goes", tuple(blocks))]
    if why.faster is not None:
        sections.append(Section("What would make it faster", _faster(why.faster)))
    return sections


def _speedup(change: FasterChange) -> str:
    return f"{change.speedup:.2f}x" + ", too close to call" * change.too_close


_FASTER: Cells[FasterChange] = (
    (Column("change"), lambda change: change.change),
    (Column("speed"), _speedup),
    (figures("tokens/s", 1), lambda change: f"~{format_rate(change.tokens_per_s)}"),
    (figures("peak", 2), lambda change: format_bytes(change.peak_device_bytes)),
)


def _faster(faster: Faster) -> tuple[Block, ...]:
    tried = f"Simulated: {', '.join(faster.tried) or 'no change'}."
    if not faster.changes:
        return Note("No single change makes it faster.", "normal"), Note(tried)
    return table_of(faster.changes, _FASTER), Note(tried)


def _formula(view: FormulaView, why: Why) -> list[Block]:
    rows: list[tuple[str, ...]] = [
        (
            term.name,
            DASH if term.bytes_per_parameter is None else f"{term.bytes_per_parameter:.3g}",
            format_count(term.parameters),
            format_bytes(term.formula_bytes),
            format_bytes(term.simulated_bytes or None),
        )
        for term in view.terms
        if term.formula_bytes or term.simulated_bytes
    ]
    sums = map(format_bytes, (view.formula_bytes, why.peak_allocated_bytes))
    rows.append(("total", "", "", *sums))
    columns = (
        Column("term"),
        Column("bytes/parameter", 2, right=True, detail="{} bytes per parameter"),
        Column("parameters", 2, right=True, detail="{} parameters"),
        Column("formula", right=True),
        Column("simulated", right=True),
    )
    word = "above" if view.rule_error > 0 else "below"
    rule = (
        f"The 16-bytes-per-parameter rule gives {format_bytes(view.rule_bytes)}, "
        f"{format_percent(abs(view.rule_error))} {word} the predicted "
        f"{format_bytes(why.peak_device_bytes)}."
    )
    return [Grid(columns, tuple(rows)), *(Note(text, "normal") for text in (rule, *view.remarks))]


_COLUMNS = (
    Column("config"),
    Column("batch", 3, right=True, detail="batch {}"),
    Column("predicted", 1, right=True, detail="predicted {}"),
    Column("emulated", 1, right=True, detail="emulated {}"),
    Column("difference", 2, right=True, detail="difference {}"),
    Column("verdict", tone=True),
)


def plan_sections(report: Report, look: Look) -> list[Section]:
    """The sections that a survey does not have; none for other reports."""
    sections = checked_sections(report) + moment_sections(report)
    if report.fewest is not None:
        sections += fewest_sections(report.fewest, report.cards)
    elif report.solve is not None:
        sections += solve_sections(report.solve, report.cards)
    elif report.sweep is not None:
        sections += sweep_sections(report.sweep, report.cards)
    elif report.cards and not report.results:
        sections += card_sections(report)
    if report.why is not None:
        sections += why_sections(report.why, look)
    return sections


def moment_sections(report: Report) -> list[Section]:
    """What a GRPO job needs at each of its moments; none without such a job."""
    jobs = [
        (result, {moment.name: moment for moment in result.measurement.moments})
        for result in report.results
        if result.measurement is not None and result.measurement.moments
    ]
    if not jobs:
        return []
    names = [name for name in _MOMENTS if any(name in moments for _, moments in jobs)]
    engine = any(moment.engine_bytes for _, moments in jobs for moment in moments.values())
    rows = tuple(
        (
            result.label,
            batch(result),
            *(
                format_bytes(moments[name].device_bytes if name in moments else None)
                for name in names
            ),
        )
        for result, moments in jobs
    )
    columns = (
        Column("config"),
        Column("batch", 3, right=True, detail="batch {}"),
        *(figures(_MOMENTS[name], place) for place, name in enumerate(names)),
    )
    simulated = jobs[0][0].evidence == "predicted"
    by = "simulated" if simulated else jobs[0][0].evidence
    computed = f"The training step is {by}, the rest computed"
    if engine:
        computed += "; vLLM's share is counted while vLLM holds it, its CUDA graphs are not"
    note = Note(f"{computed}. Log-probabilities and saving need less than a step.")
    return [Section("Moments of a GRPO job", (Grid(columns, rows), note))]


_MOMENTS = {"generate": "generation", "sync": "new weights to vLLM", "step": "training step"}


def checked_sections(report: Report) -> list[Section]:
    """Both peaks of each checked rung, and whether the verdicts differ; none without checks."""
    checked = [result for result in report.results if is_checked(result)]
    if report.request is None or report.request.plan is None or not checked:
        return []
    usable = report.usable_bytes
    differ = [result.label for result in checked if _difference(result, usable)]
    where = f"The emulated card decides where they differ: {', '.join(differ)}."
    verdicts = where if differ else "The verdicts agree."
    rows = tuple(_checked_row(result, usable) for result in checked)
    title = "Checked on the emulated card"
    return [Section(title, (Grid(_COLUMNS, rows), Note(verdicts)))]


def _checked_row(result: ProbeResult, usable: int | None) -> tuple[str, ...]:
    expected = result.predicted.deciding_peak_bytes() if result.predicted is not None else None
    peak = result.deciding_peak_bytes()
    difference = f"{(expected - peak) / peak:+.2%}" if expected and peak is not None else DASH
    verdict = ", ".join(filter(None, [OUTCOME_WORDS[result.outcome], _difference(result, usable)]))
    sizes = map(format_bytes, (expected, peak))
    return (result.label, batch(result), *sizes, difference, verdict)


def _difference(result: ProbeResult, usable: int | None) -> str:
    """What was predicted, where the emulated card said something else; empty where they agree."""
    said = next((note for note in result.notes if note.startswith("predicted ")), None)
    expected = result.predicted.deciding_peak_bytes() if result.predicted is not None else None
    if said is not None or expected is None or usable is None:
        return said or ""
    if (expected <= usable) == (result.outcome == "fits"):
        return ""
    return "predicted to fit" if expected <= usable else "predicted not to fit"
