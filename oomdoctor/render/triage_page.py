"""The pages of many jobs: `triage`, and `show` of probes on several GPU types; and both as CSV."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import fields
from typing import Any

from oomdoctor.records.job.result import OUTCOME_WORDS, ProbeResult
from oomdoctor.records.report.diagnosis import RESOURCE_WORDS
from oomdoctor.records.report.report import Report
from oomdoctor.records.report.triage import GatheredJob, Triage, TriagedJob, TriageGroup
from oomdoctor.render.blocks import Block, Column, Grid, Look, Note, Section, figures, table_of
from oomdoctor.render.formats.csv_rows import named, record_rows
from oomdoctor.render.words import batch, counted
from oomdoctor.units import format_bytes, format_rate

_SHOWN = 40  # lines without --verbose
# The names of the contract that read otherwise in a table.
_REASONS = {"cancelled": "canceled"}


def triage_sections(report: Report, look: Look) -> list[Section]:
    """The counts, the groups of --by, a line for each job, then warnings."""
    found, verbose = report.triage, look.verbose
    if found is None:
        return []
    sections = [Section("", (Note(_counts(found), "strong"),))]
    if found.by is not None:
        sections.append(Section("", (_groups(found.groups, found.by),)))
        if not verbose:
            return sections
    jobs = [one for one in found.jobs if verbose or one.outcome != "ended"]
    shown = jobs if verbose else jobs[:_SHOWN]
    blocks: list[Block] = [_lines(shown)] if shown else []
    if len(shown) < len(jobs):
        blocks.append(Note(f"--verbose shows {len(jobs) - len(shown):,} more."))
    return [*sections, Section("", tuple(blocks))] if blocks else sections


def _counts(found: Triage) -> str:
    since = f" since {found.since}" if found.since else ""
    text = f"{found.oom:,} of {counted(len(found.jobs), 'job')}{since} ran out of memory"
    rest = [
        f"{count:,} {words}"
        for count, words in (
            (found.other, "ended for another reason"),
            (found.unknown, "without a known reason"),
            (found.ended, "completed or not ended"),
        )
        if count
    ]
    return "; ".join([text, *rest])


def _groups(groups: tuple[TriageGroup, ...], by: str) -> Grid:
    often = (Column("most often", 1), _most_often)
    return table_of(
        groups,
        (
            (Column(by), lambda one: _REASONS.get(one.key, one.key)),
            (figures("jobs"), lambda one: f"{one.jobs:,}"),
            (figures("memory"), lambda one: f"{one.oom:,}"),
            (figures("other", 3, "{} other"), lambda one: f"{one.other:,}"),
            (figures("unknown", 4, "{} unknown"), lambda one: f"{one.unknown:,}"),
            *([often] if by != "cause" else []),
            (Column("first remedy", 2, detail="try: {}", wraps=True), lambda one: one.remedy or ""),
        ),
    ).without_empty_columns()


def _most_often(group: TriageGroup) -> str:
    return ", ".join(_REASONS.get(reason, reason) for reason in group.reasons)


def _lines(jobs: list[TriagedJob]) -> Grid:
    cells: tuple[tuple[Column, Callable[[TriagedJob], str]], ...] = (
        (Column("job"), lambda one: one.job or one.source),
        (Column("user", 5), lambda one: one.user or ""),
        (Column("outcome", 2, tone=True), _outcome),
        (Column("cause"), lambda one: _REASONS.get(one.reason, one.reason)),
        (Column("phase", 4, detail="in {}"), lambda one: one.phase or ""),
        (Column("your line", 6), lambda one: one.where or ""),
        (Column("remedy", 3), lambda one: one.remedy or one.why),
        (Column("line to change", 1, wraps=True), lambda one: one.line or ""),
    )
    return table_of(jobs, cells).without_empty_columns()


def _outcome(one: TriagedJob) -> str:
    words = {"oom": RESOURCE_WORDS[one.resource], "other": "other error", "ended": "no failure"}
    return words.get(one.outcome, "unknown")


def triage_rows(report: Report) -> Iterator[list[Any]]:
    """The header, then the rows. Headings are the keys in JSON."""
    found = report.triage
    grouped = found is not None and found.by is not None
    names = [field.name for field in fields(TriageGroup if grouped else TriagedJob)]
    return record_rows(named(names), (found.groups if grouped else found.jobs) if found else ())


_GATHERED = (
    *named(("gpu_type", "job"), "0."),
    ("status", "0.outcome"),
    *named(("gpu_name", "usable_bytes"), "0."),
    *named(("label", "outcome", "micro_batch_size"), "1."),
    (
        "peak_bytes",
        lambda row: row[1] and (row[1].peak_reserved_bytes or row[1].peak_allocated_bytes),
    ),
    *named(("tokens_per_s",), "1."),
    ("reason", lambda row: (row[1] and row[1].reason) or row[0].reason),
)
_BEST = 3  # rungs of a job without --verbose


def gathered_sections(report: Report, look: Look) -> list[Section]:
    """How many GPU types fit, and the best rungs of each."""
    jobs = report.gathered
    fit = sum(any(one.surely_fits for one in job.results) for job in jobs)
    columns = (
        Column("GPU type"),
        Column("job", 6, detail="job {}"),
        Column("outcome", tone=True),
        Column("config", 2),
        Column("batch", 4, detail="batch {}"),
        Column("peak", 1, right=True, detail="peak {}"),
        Column("usable", 5, right=True, detail="{} usable"),
        Column("tokens/s", 3, right=True, detail="{} tokens/s"),
        Column("reason", 7, detail="{}", wraps=True),
    )
    rows = tuple(row for job in jobs for row in _gathered_rows(job, verbose=look.verbose))
    text = f"{fit} of {counted(len(jobs), 'GPU type')} can train it"
    grid = Grid(columns, rows).without_empty_columns()
    return [Section("", (Note(text, "strong"),)), Section("", (grid,))]


def gathered_rows(report: Report) -> Iterator[list[Any]]:
    """The header, then a row a result; a job without results has one row."""
    results = ((job, one) for job in report.gathered for one in job.results or (None,))
    return record_rows(_GATHERED, results)


def _gathered_rows(job: GatheredJob, *, verbose: bool) -> list[tuple[str, ...]]:
    fits = [one for one in job.results if one.surely_fits]
    shown = list(job.results) if verbose else (fits or list(job.results))[:_BEST]
    rows = [_gathered_row(job, one, first=number == 0) for number, one in enumerate(shown)]
    empty = (job.gpu_type, job.job, job.outcome, "", "", "", "", "", job.reason or "")
    return rows or [empty]


def _gathered_row(job: GatheredJob, one: ProbeResult, *, first: bool) -> tuple[str, ...]:
    return (
        job.gpu_type,
        job.job,
        OUTCOME_WORDS[one.outcome],
        one.label,
        batch(one),
        format_bytes(one.peak_reserved_bytes or one.peak_allocated_bytes),
        format_bytes(job.usable_bytes),
        format_rate(one.tokens_per_s),
        (job.reason if first else None) or (one.reason if one.outcome != "fits" else None) or "",
    )
