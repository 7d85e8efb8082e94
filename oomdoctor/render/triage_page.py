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
    triage, verbose = report.triage, look.verbose
    if triage is None:
        return []
    sections = [Section("", (Note(_counts(triage), "strong"),))]
    if triage.by is not None:
        sections.append(Section("", (_groups(triage.groups, triage.by),)))
        if not verbose:
            return sections
    jobs = [job for job in triage.jobs if verbose or job.outcome != "ended"]
    shown = jobs if verbose else jobs[:_SHOWN]
    blocks: list[Block] = [_lines(shown)] if shown else []
    if len(shown) < len(jobs):
        blocks.append(Note(f"--verbose shows {len(jobs) - len(shown):,} more."))
    return [*sections, Section("", tuple(blocks))] if blocks else sections


def _counts(triage: Triage) -> str:
    since = f" since {triage.since}" if triage.since else ""
    text = f"{triage.oom:,} of {counted(len(triage.jobs), 'job')}{since} ran out of memory"
    rest = [
        f"{count:,} {words}"
        for count, words in (
            (triage.other, "ended for another reason"),
            (triage.unknown, "without a known reason"),
            (triage.ended, "completed or not ended"),
        )
        if count
    ]
    return "; ".join([text, *rest])


def _groups(groups: tuple[TriageGroup, ...], by: str) -> Grid:
    often = (
        Column("most often", 1),
        lambda group: ", ".join(_REASONS.get(reason, reason) for reason in group.reasons),
    )
    return table_of(
        groups,
        (
            (Column(by), lambda group: _REASONS.get(group.key, group.key)),
            (figures("jobs"), lambda group: f"{group.jobs:,}"),
            (figures("memory"), lambda group: f"{group.oom:,}"),
            (figures("other", 3, "{} other"), lambda group: f"{group.other:,}"),
            (figures("unknown", 4, "{} unknown"), lambda group: f"{group.unknown:,}"),
            *([often] if by != "cause" else []),
            (
                Column("first remedy", 2, detail="try: {}", wraps=True),
                lambda group: group.remedy or "",
            ),
        ),
    ).without_empty_columns()


def _lines(jobs: list[TriagedJob]) -> Grid:
    cells: tuple[tuple[Column, Callable[[TriagedJob], str]], ...] = (
        (Column("job"), lambda job: job.job or job.source),
        (Column("user", 5), lambda job: job.user or ""),
        (Column("outcome", 2, tone=True), _outcome),
        (Column("cause"), lambda job: _REASONS.get(job.reason, job.reason)),
        (Column("phase", 4, detail="in {}"), lambda job: job.phase or ""),
        (Column("your line", 6), lambda job: job.where or ""),
        (Column("remedy", 3), lambda job: job.remedy or job.why),
        (Column("line to change", 1, wraps=True), lambda job: job.line or ""),
    )
    return table_of(jobs, cells).without_empty_columns()


def _outcome(job: TriagedJob) -> str:
    words = {"oom": RESOURCE_WORDS[job.resource], "other": "other error", "ended": "no failure"}
    return words.get(job.outcome, "unknown")


def triage_rows(report: Report) -> Iterator[list[Any]]:
    """The header, then the rows. Headings are the keys in JSON."""
    triage = report.triage
    grouped = triage is not None and triage.by is not None
    names = [field.name for field in fields(TriageGroup if grouped else TriagedJob)]
    return record_rows(named(names), (triage.groups if grouped else triage.jobs) if triage else ())


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
    fit = sum(any(result.surely_fits for result in job.results) for job in jobs)
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
    results = ((job, result) for job in report.gathered for result in job.results or (None,))
    return record_rows(_GATHERED, results)


def _gathered_rows(job: GatheredJob, *, verbose: bool) -> list[tuple[str, ...]]:
    fits = [result for result in job.results if result.surely_fits]
    shown = list(job.results) if verbose else (fits or list(job.results))[:_BEST]
    rows = [_gathered_row(job, result, first=number == 0) for number, result in enumerate(shown)]
    empty = (job.gpu_type, job.job, job.outcome, "", "", "", "", "", job.reason or "")
    return rows or [empty]


def _gathered_row(job: GatheredJob, result: ProbeResult, *, first: bool) -> tuple[str, ...]:
    return (
        job.gpu_type,
        job.job,
        OUTCOME_WORDS[result.outcome],
        result.label,
        batch(result),
        format_bytes(result.peak_reserved_bytes or result.peak_allocated_bytes),
        format_bytes(job.usable_bytes),
        format_rate(result.tokens_per_s),
        (job.reason if first else None)
        or (result.reason if result.outcome != "fits" else None)
        or "",
    )
