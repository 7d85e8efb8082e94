"""The rungs of a report by what became of them: those that fit, those that did not, the rest."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from oomdoctor.analysis.rank import ranked_by, ties
from oomdoctor.records.job.result import ProbeResult
from oomdoctor.records.report.plan import PlanRemedy
from oomdoctor.records.report.report import Report
from oomdoctor.render.blocks import Block, Facts, Look, Note, Section
from oomdoctor.render.ladder import columns
from oomdoctor.render.ladder.columns import Cell, Row
from oomdoctor.render.ladder.header import is_plan, too_large
from oomdoctor.render.words import about_speed, ranked_results, short_count
from oomdoctor.units import format_bytes

_APART = {
    "not_settled": "Fits, speed not settled",
    "not_believable": "Fits, speed not believable",
}
_MEASURE_AGAIN = (
    "Not ranked, because the step times did not settle. Measure again on an idle machine, or use "
    "--rank-by memory."
)
_METHODS = {"full": "Full fine-tuning", "lora": "LoRA", "qlora": "QLoRA"}
OTHERS = "others"
"""The part of a page for a browser with what did not fit."""


def rung_sections(report: Report, look: Look) -> list[Section]:
    """One table an outcome; none for a report without results."""
    plus_minus = look.plus_minus
    ranked = set(report.ranking)
    # The rung of --from has a section above.
    own = report.yours.key if report.yours is not None else None
    rungs = [result for result in report.results if result.key != own]
    all_fitting = [r for r in ranked_results(report) if r.key != own and not r.borderline]
    near = [result for result in rungs if result.borderline]
    apart = [r for r in all_fitting if r.speed_state in _APART and r.key not in ranked]
    fitting = [result for result in all_fitting if result not in apart]
    missed = [r for r in rungs if r.outcome in too_large(report) and not r.borderline]
    others = [r for r in rungs if r.outcome not in ("fits", *too_large(report))]
    sections = []
    each = " on each GPU" if report.machine is not None and report.machine.gpus > 1 else ""
    usable = report.budget.usable_bytes if report.budget is not None else None
    if fitting:
        title = "Fits" if usable is None else f"Fits in {format_bytes(usable)} of usable memory"
        title += each * (usable is not None)
        sections.append(Section(title, tuple(_fitting(report, fitting, usable, plus_minus))))
    for state, title in _APART.items():
        unranked = [result for result in apart if result.speed_state == state]
        if unranked:
            sections.append(Section(title, tuple(_unranked(report, unranked, plus_minus))))
    if near:
        near.sort(key=lambda result: result.deciding_peak_bytes() or 0)
        sections.append(Section("Borderline", tuple(_unranked(report, near, plus_minus))))
    if missed:
        planned = is_plan(report)
        rows = [Row(result, plus_minus, usable_bytes=usable, planned=planned) for result in missed]
        blocks: list[Block] = [columns.table(columns.DID_NOT_FIT, rows)[0]]
        if any(columns.predicted_need(result, usable) is not None for result in missed):
            blocks.append(Note("~ is predicted."))
        title = "Does not fit" if is_plan(report) else "Did not fit"
        sections.append(Section(title, tuple(blocks), part=OTHERS))
    not_run = _not_run(report, others, plus_minus, look.verbose)
    if not_run:
        title = "Not simulated" if is_plan(report) else "Not measured"
        sections.append(Section(title, tuple(not_run), part=OTHERS))
    best = _best_of_each_method(report, plus_minus)
    if (all_fitting and len(best) > 1) or _remedies(report):
        sections.append(Section("Best of each method", (Facts(best),)))
    return sections


def _fitting(
    report: Report, results: list[ProbeResult], usable: int | None, plus_minus: str
) -> list[Block]:
    fastest = max((r.tokens_per_s or 0.0 for r in report.results if r.surely_fits), default=None)
    if ranked_by(results, "throughput") != "throughput":
        fastest = None  # the fastest may be one without a speed
    places = {key: number for number, key in enumerate(report.ranking, 1)}
    notes = [columns.fit_notes(result, planned=is_plan(report)) for result in results]
    rows = [
        Row(
            result,
            plus_minus,
            place=places.get(result.key),
            usable_bytes=usable,
            fastest_tokens_per_s=fastest,
            tokens=short_count(report.request.tokens) if report.request is not None else "N",
        )
        for result in results
    ]
    blocks = _with_notes(columns.FITS, rows, notes)
    own = columns.own_data_note(report, results)
    if own:
        blocks.append(Note(own))
    if any(result.tokens_per_s_spread is not None for result in results):
        spread = "the error of the estimate" if is_plan(report) else "the spread of the timed steps"
        blocks.append(Note(f"{plus_minus} is {spread}{_tied(report, results)}."))
    return blocks


def _with_notes(
    cells: Sequence[Cell], rows: Sequence[Row], notes: Sequence[Sequence[str]]
) -> list[Block]:
    """A table of rungs, each with its notes; what all of them say stands below it."""
    shared = columns.shared_notes(notes)
    grid, same = columns.table(
        cells,
        [
            replace(row, notes=tuple(note for note in own if note not in shared))
            for row, own in zip(rows, notes, strict=True)
        ],
    )
    said = [*same, *shared]
    return [grid, Note(f"All rungs above: {'; '.join(said)}.")] if said else [grid]


def _unranked(report: Report, results: list[ProbeResult], plus_minus: str) -> list[Block]:
    """The rungs that may fit but have no place: borderline, or their times cannot be trusted."""
    split = [
        columns.without_borderline(result, columns.fit_notes(result, planned=is_plan(report)))
        for result in results
    ]
    usable = report.budget.usable_bytes if report.budget is not None else None
    rows = [Row(result, plus_minus, usable_bytes=usable) for result in results]
    blocks = _with_notes(columns.UNRANKED, rows, [own for own, _ in split])
    blocks += [Note(text) for text in _why_borderline(results, [why for _, why in split])]
    if results[0].speed_state == "not_settled":
        blocks.append(Note(_MEASURE_AGAIN))
    return blocks


def _why_borderline(results: list[ProbeResult], reasons: list[str]) -> list[str]:
    """How far the predictions of borderline rungs may be off, once for all that share it."""
    named: dict[str, list[str]] = {}
    for result, reason in zip(results, reasons, strict=True):
        if reason:
            named.setdefault(reason, []).append(result.label)
    if len(named) == 1:
        return [f"May or may not fit: {reason}." for reason in named]
    return [
        f"{', '.join(labels)} may or may not fit: {reason}." for reason, labels in named.items()
    ]


def _tied(report: Report, results: list[ProbeResult]) -> str:
    """Which ranks are equal within the error of the estimates; empty if none are."""
    if report.request is None or ranked_by(results, report.request.rank_by) != "throughput":
        return ""
    places = {key: number for number, key in enumerate(report.ranking, 1)}
    ranked = [result for result in report.results if result.key in places]
    ranked.sort(key=lambda result: places[result.key])
    spans = [[places[one.key] for one in group] for group in ties(ranked) if len(group) > 1]
    if not spans:
        return ""
    ranges = [f"{min(span)} {'and' if len(span) == 2 else 'to'} {max(span)}" for span in spans]
    return f"; ranks {', '.join(ranges)} differ by less, and more free memory goes first"


def _not_run(
    report: Report, results: list[ProbeResult], plus_minus: str, verbose: bool
) -> list[Block]:
    blocks: list[Block] = []
    if results:
        blocks.append(
            columns.table(columns.NOT_RUN, [Row(result, plus_minus) for result in results])[0]
        )
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
    remedies = _remedies(report)
    own = report.yours.key if report.yours is not None else None  # has a section above
    pairs = []
    for method, name in _METHODS.items():
        rungs = [r for r in report.results if r.config.method == method and r.key != own]
        reached = [r for r in rungs if r.failure is None or r.failure.code != "not_reached"]
        key = getattr(report.picks, method) or ""
        if key in by_key:
            rate = about_speed(by_key[key], plus_minus)
            pairs.append((name, ", ".join(filter(None, [by_key[key].label, rate]))))
        elif any(r.outcome == "fits" and r.speed_state in _APART for r in rungs):
            fitting = ", ".join(r.label for r in rungs if r.outcome == "fits")
            pairs.append((name, f"not ranked by speed; {fitting} fit{'s' * (', ' not in fitting)}"))
        elif any(r.borderline for r in rungs):
            near = ", ".join(r.label for r in rungs if r.borderline)
            helps = [one for one in remedies.get(method, []) if one.change and not one.reason]
            changed = [f"{one.label} {_change_text(one)}" for one in helps]
            pairs.append(
                (name, "; ".join([f"none fits for certain; borderline: {near}", *changed]))
            )
        elif method in remedies:
            pairs.append((name, _remedy_text(remedies[method])))
        elif rungs:
            waiting = "not tried yet" if report.status == "running" else "not reached"
            pairs.append((name, "none fits" if reached else waiting))
    return tuple(pairs)


def _remedies(report: Report) -> dict[str, list[PlanRemedy]]:
    """What would make a method fit of which no rung does; only in a plan for one card."""
    found: dict[str, list[PlanRemedy]] = {}
    for card in report.cards if len(report.cards) == 1 else ():
        for remedy in card.remedies:
            found.setdefault(remedy.method, []).append(remedy)
    return found


def _remedy_text(remedies: list[PlanRemedy]) -> str:
    """`none fits; lora-r16 fits with sequence length 1,664 (frees 3.50 GiB, peak 22.8 GiB)`."""
    first = remedies[0]
    if first.change is None:
        return f"none fits, and no change is enough; {first.label}: {first.reason}"
    return f"none fits; {first.label} {', or '.join(map(_change_text, remedies))}"


def _change_text(remedy: PlanRemedy) -> str:
    frees = format_bytes(remedy.frees_bytes)
    if remedy.basis == "arithmetic":
        return (
            f"may fit with {remedy.change} (frees up to {frees}; not installed here to simulate it)"
        )
    peak = format_bytes(remedy.peak_device_bytes)
    verb = "is borderline with" if remedy.reason else "fits with"
    return f"{verb} {remedy.change} (frees {frees}, peak {peak})"
