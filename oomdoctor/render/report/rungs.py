"""The rungs of a report by what became of them: those that fit, those that did not, the rest."""

from __future__ import annotations

from oomdoctor.records.report import Report
from oomdoctor.records.result import ProbeResult
from oomdoctor.render.blocks import Block, Facts, Note, Section
from oomdoctor.render.report.columns import DID_NOT_FIT, FITS, NOT_RUN, Row, table
from oomdoctor.render.report.header import is_plan
from oomdoctor.render.report.notes import fit_notes, shared_notes
from oomdoctor.render.words import about_speed, ranked_results, short_count
from oomdoctor.units import format_bytes

_METHODS = {"full": "Full fine-tuning", "lora": "LoRA", "qlora": "QLoRA"}


def rung_sections(report: Report, *, verbose: bool, plus_minus: str) -> list[Section]:
    """One table an outcome; none for a report without results."""
    fitting = ranked_results(report)
    missed = [r for r in report.results if r.outcome in ("oom", "host_oom")]
    others = [r for r in report.results if r.outcome not in ("fits", "oom", "host_oom")]
    sections = []
    if fitting:
        usable = report.budget.usable_bytes if report.budget is not None else None
        title = "Fits" if usable is None else f"Fits in {format_bytes(usable)} of usable memory"
        sections.append(Section(title, tuple(_fitting(report, fitting, usable, plus_minus))))
    if missed:
        grid, _ = table(DID_NOT_FIT, [Row(result, plus_minus) for result in missed])
        sections.append(Section("Does not fit" if is_plan(report) else "Did not fit", (grid,)))
    not_run = _not_run(report, others, plus_minus, verbose)
    if not_run:
        title = "Not simulated" if is_plan(report) else "Not measured"
        sections.append(Section(title, tuple(not_run)))
    best = _best_of_each_method(report, plus_minus) if fitting else ()
    if len(best) > 1:
        sections.append(Section("Best of each method", (Facts(best),)))
    return sections


def _fitting(
    report: Report, results: list[ProbeResult], usable: int | None, plus_minus: str
) -> list[Block]:
    notes = [fit_notes(result, planned=is_plan(report)) for result in results]
    shared = shared_notes(notes)
    ranked = set(report.ranking)
    rows = [
        Row(
            result,
            plus_minus,
            place=place if result.key in ranked else None,
            usable_bytes=usable,
            fastest_tokens_per_s=max((r.tokens_per_s or 0.0 for r in results), default=None),
            tokens=short_count(report.request.tokens) if report.request is not None else "N",
            notes=tuple(note for note in own if note not in shared),
        )
        for place, (result, own) in enumerate(zip(results, notes, strict=True), 1)
    ]
    grid, same = table(FITS, rows)
    blocks: list[Block] = [grid]
    if same or shared:
        blocks.append(Note(f"All rungs above: {'; '.join([*same, *shared])}."))
    if any(result.tokens_per_s_spread is not None for result in results):
        spread = "the error of the estimate" if is_plan(report) else "the spread of the timed steps"
        blocks.append(Note(f"{plus_minus} is {spread}."))
    return blocks


def _not_run(
    report: Report, results: list[ProbeResult], plus_minus: str, verbose: bool
) -> list[Block]:
    blocks: list[Block] = []
    if results:
        blocks.append(table(NOT_RUN, [Row(result, plus_minus) for result in results])[0])
    not_reached = _not_reached(report)
    if not_reached:
        blocks.append(Note("Not reached: " + ", ".join(not_reached), "normal"))
    if not verbose and any(r.failure is not None and r.failure.log_tail for r in results):
        blocks.append(Note("--verbose shows the end of each log."))
    return blocks


def _not_reached(report: Report) -> list[str]:
    if report.request is None or report.status == "error" or (report.cards and not report.results):
        return []
    known = {result.label for result in report.results}
    return [rung.label for rung in report.request.recipe.rungs if rung.label not in known]


def _best_of_each_method(report: Report, plus_minus: str) -> tuple[tuple[str, str], ...]:
    """The methods of the ladder, each with the rung that is best; they train differently."""
    by_key = {result.key: result for result in report.results}
    pairs = []
    for method, name in _METHODS.items():
        rungs = [r for r in report.results if r.config.method == method]
        reached = [r for r in rungs if r.failure is None or r.failure.code != "not_reached"]
        key = getattr(report.picks, method) or ""
        if key in by_key:
            rate = about_speed(by_key[key], plus_minus)
            pairs.append((name, ", ".join(filter(None, [by_key[key].label, rate]))))
        elif rungs:
            pairs.append((name, "none fits" if reached else "not reached"))
    return tuple(pairs)
