"""The rungs of a report by what became of them: those that fit, those that did not, the rest."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from oomdoctor.analysis.ranking import in_order, ranked_by, ties
from oomdoctor.records.job.result import OUTCOME_WORDS, ProbeResult
from oomdoctor.records.report.report import Report
from oomdoctor.render.blocks import Block, Column, Facts, Grid, Look, Note, Section
from oomdoctor.render.ladder import columns
from oomdoctor.render.ladder.answer import APART, method_answers, remedies_of
from oomdoctor.render.ladder.columns import Cell, Row
from oomdoctor.render.ladder.header import is_plan, too_large
from oomdoctor.render.words import short_count
from oomdoctor.units import format_bytes

_MEASURE_AGAIN = (
    "Not ranked, because the step times did not settle. Measure again on an idle machine, or use "
    "--rank-by memory."
)
_LINE = (Column("config"), Column("why", 1, tone=True, wraps=True))
_IN_THE_REASON = ("unsupported", "skipped")  # outcomes
OTHERS = "others"
"""The part of a page for a browser with what did not fit."""


def rung_sections(report: Report, look: Look) -> list[Section]:
    """One table an outcome; none for a report without results."""
    ranked = set(report.ranking)
    # The rung of --from has a section above.
    own = report.yours.key if report.yours is not None else None
    rungs = [result for result in in_order(report) if result.key != own]
    all_fitting = [result for result in rungs if result.surely_fits]
    near = [result for result in rungs if result.borderline]
    apart = [r for r in all_fitting if r.speed_state in APART and r.key not in ranked]
    fitting = [result for result in all_fitting if result not in apart]
    sections = []
    each = " on each GPU" if report.machine is not None and report.machine.gpus > 1 else ""
    usable = report.usable_bytes
    if fitting:
        title = "Fits" if usable is None else f"Fits in {format_bytes(usable)} of usable memory"
        title += each * (usable is not None)
        sections.append(Section(title, tuple(_fitting(report, fitting, look))))
    for state, title in APART.items():
        unranked = [result for result in apart if result.speed_state == state]
        if unranked:
            sections.append(Section(title, tuple(_unranked(report, unranked, look))))
    if near:
        sections.append(Section("Borderline", tuple(_unranked(report, near, look))))
    rest = [result for result in rungs if result.outcome != "fits" and not result.borderline]
    return sections + (_tables if look.verbose else _lines)(report, rest, look)


def _lines(report: Report, rest: list[ProbeResult], _: Look) -> list[Section]:
    """A line for each rung that does not fit, the nearest first, and for each without numbers.

    What is short by arithmetic alone does not fit either.
    """
    planned, usable = is_plan(report), report.usable_bytes
    large = too_large(report)
    missed = [
        result for result in rest if result.outcome in large or result.missed_by_bytes is not None
    ]
    others = [result for result in rest if result not in missed]
    grid = Grid(_LINE, tuple((result.label, _why(result)) for result in others), head=False)
    not_run = _not_run(report, [grid] if others else [], others, verbose=False)
    if not missed:
        return not_run
    lines = tuple((result.label, _misses(result, usable, planned=planned)) for result in missed)
    shown: list[Block] = [Grid(_LINE, lines, head=False)]
    if [section.blocks for section in not_run] == [(grid,)] and len(others) == 1:
        (section,), (result,) = not_run, others
        shown.append(Note(f"{section.title}: {result.label}, {_why(result)}", "normal"))
        not_run = []
    return [Section(_too_large(report), tuple(shown), part=OTHERS), *not_run]


def _misses(result: ProbeResult, usable: int | None, *, planned: bool) -> str:
    """`short by 31.6 GiB, needs 45.8 GiB`, and what else matters."""
    missed = result.missed_by_bytes
    if result.outcome == "skipped" and missed is not None and usable is not None:
        least, short = format_bytes(usable + missed), format_bytes(missed)
        return f"short by at least {short}, needs at least {least}"
    said = columns.missed_by(result, usable) or OUTCOME_WORDS[result.outcome]
    return "; ".join([said, *columns.miss_notes(result, planned=planned)])


def _tables(report: Report, rest: list[ProbeResult], look: Look) -> list[Section]:
    """The rungs that do not fit and those without numbers, and what is best of each method."""
    planned, usable = is_plan(report), report.usable_bytes
    missed = [result for result in rest if result.outcome in too_large(report)]
    others = [result for result in rest if result not in missed]
    sections = []
    if missed:
        rows = [
            Row(result, look.plus_minus, usable_bytes=usable, planned=planned) for result in missed
        ]
        blocks: list[Block] = [columns.table(columns.DID_NOT_FIT, rows)[0]]
        if any(columns.predicted_need(result, usable) is not None for result in missed):
            blocks.append(Note("~ is predicted."))
        sections.append(Section(_too_large(report), tuple(blocks), part=OTHERS))
    rows = [Row(result, look.plus_minus) for result in others]
    sections += _not_run(
        report, [columns.table(columns.NOT_RUN, rows)[0]] if rows else [], others, verbose=True
    )
    methods = tuple(
        (answer.name, answer.text) for answer in method_answers(report, look.plus_minus)
    )
    if (any(r.surely_fits for r in report.results) and len(methods) > 1) or remedies_of(report):
        sections.append(Section("Best of each method", (Facts(methods),)))
    return sections


def _too_large(report: Report) -> str:
    return "Does not fit" if is_plan(report) else "Did not fit"


def _why(result: ProbeResult) -> str:
    """Why a rung has no numbers; its outcome where that is no word of the reason."""
    reason = columns.why_not_run(result)
    words = [] if result.outcome in _IN_THE_REASON and reason else [OUTCOME_WORDS[result.outcome]]
    return ": ".join(filter(None, [*words, reason]))


def _fitting(report: Report, results: list[ProbeResult], look: Look) -> list[Block]:
    plus_minus = look.plus_minus
    fastest = max((r.tokens_per_s or 0.0 for r in report.results if r.surely_fits), default=None)
    if ranked_by(results, "throughput") != "throughput":
        fastest = None  # the fastest may be one without a speed
    places = {key: number for number, key in enumerate(report.ranking, 1)}
    planned = is_plan(report)
    notes = [columns.fit_notes(result, planned=planned, verbose=look.verbose) for result in results]
    per_hour, currency = _price(report)
    rows = [
        Row(
            result,
            plus_minus,
            place=places.get(result.key),
            usable_bytes=report.usable_bytes,
            fastest_tokens_per_s=fastest,
            tokens=short_count(report.request.tokens) if report.request is not None else "N",
            per_hour=per_hour,
            currency=currency,
        )
        for result in results
    ]
    blocks = _with_notes(columns.FITS if look.verbose else columns.IN_SHORT, rows, notes)
    own = columns.own_data_note(report, results)
    if own:
        blocks.append(Note(own))
    tied = _tied(report, results)
    uncertain = any(result.tokens_per_s_spread is not None for result in results)
    if uncertain and (tied or look.verbose):
        spread = "the error of the estimate" if planned else "the spread of the timed steps"
        blocks.append(Note(f"{plus_minus} is {spread}{tied}."))
    return blocks


def _price(report: Report) -> tuple[float | None, str]:
    """The price of an hour of the card that a plan is for, and its currency."""
    plan = report.request.plan if report.request is not None else None
    if plan is None or plan.prices is None or len(report.cards) != 1:
        return None, ""
    return report.cards[0].price_per_hour, plan.prices.currency


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
    return [grid, Note(f"All configurations above: {'; '.join(said)}.")] if said else [grid]


def _unranked(report: Report, results: list[ProbeResult], look: Look) -> list[Block]:
    """The rungs that may fit but have no place: borderline, or their times cannot be trusted."""
    planned, verbose = is_plan(report), look.verbose
    split = [
        columns.without_borderline(
            result, columns.fit_notes(result, planned=planned, verbose=verbose)
        )
        for result in results
    ]
    rows = [Row(result, look.plus_minus, usable_bytes=report.usable_bytes) for result in results]
    cells = columns.UNRANKED if verbose else columns.UNRANKED_IN_SHORT
    blocks = _with_notes(cells, rows, [own for own, _ in split])
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
    """Which ranks have speeds too close to call; empty if there are none."""
    if report.request is None or ranked_by(results, report.request.rank_by) != "throughput":
        return ""
    places = {key: number for number, key in enumerate(report.ranking, 1)}
    ranked = [result for result in in_order(report) if result.key in places]
    spans = [[places[result.key] for result in group] for group in ties(ranked) if len(group) > 1]
    if not spans:
        return ""
    ranges = [f"{min(span)} {'and' if len(span) == 2 else 'to'} {max(span)}" for span in spans]
    return f"; ranks {', '.join(ranges)} are too close to call, so more free memory goes first"


def _not_run(
    report: Report, blocks: Sequence[Block], results: list[ProbeResult], *, verbose: bool
) -> list[Section]:
    """The section of the rungs without numbers, which `blocks` show; none if there are none."""
    notes = []
    not_reached = _not_reached(report)
    if not_reached:
        notes.append(Note("Not reached: " + ", ".join(not_reached), "normal"))
    if not verbose and any(r.failure is not None and r.failure.log_tail for r in results):
        notes.append(Note("--verbose shows the end of each log."))
    parts = (*blocks, *notes)
    title = "Not simulated" if is_plan(report) else "Not measured"
    return [Section(title, parts, part=OTHERS)] if parts else []


def _not_reached(report: Report) -> list[str]:
    if report.request is None or report.status == "error" or (report.cards and not report.results):
        return []
    reached = {result.label for result in report.results}
    return [rung.label for rung in report.request.recipe.rungs if rung.label not in reached]
