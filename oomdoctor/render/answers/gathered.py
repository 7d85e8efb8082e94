"""Probes on several GPU types as one table, and as CSV: a row a rung that fits, or the reason."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from oomdoctor.records.report import Report
from oomdoctor.records.result import OUTCOME_WORDS, ProbeResult
from oomdoctor.records.triage import GatheredJob
from oomdoctor.render.blocks import Column, Grid, Look, Note, Section
from oomdoctor.render.formats.csv_rows import named, record_rows
from oomdoctor.render.words import batch, counted
from oomdoctor.units import format_bytes, format_rate

_CSV = (
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
        Column("rung", 2),
        Column("batch", 4, detail="batch {}"),
        Column("peak", 1, right=True, detail="peak {}"),
        Column("usable", 5, right=True, detail="{} usable"),
        Column("tokens/s", 3, right=True, detail="{} tokens/s"),
        Column("reason", 7, detail="{}", wraps=True),
    )
    rows = tuple(row for job in jobs for row in _rows(job, verbose=look.verbose))
    text = f"{fit} of {counted(len(jobs), 'GPU type')} can train it"
    grid = Grid(columns, rows).without_empty_columns()
    return [Section("", (Note(text, "strong"),)), Section("", (grid,))]


def gathered_rows(report: Report) -> Iterator[list[Any]]:
    """The header, then a row a result; a job without results has one row."""
    results = ((job, one) for job in report.gathered for one in job.results or (None,))
    return record_rows(_CSV, results)


def _rows(job: GatheredJob, *, verbose: bool) -> list[tuple[str, ...]]:
    fits = [one for one in job.results if one.surely_fits]
    shown = list(job.results) if verbose else (fits or list(job.results))[:_BEST]
    rows = [_row(job, one, first=number == 0) for number, one in enumerate(shown)]
    empty = (job.gpu_type, job.job, job.outcome, "", "", "", "", "", job.reason or "")
    return rows or [empty]


def _row(job: GatheredJob, one: ProbeResult, *, first: bool) -> tuple[str, ...]:
    return (
        job.gpu_type,
        job.job,
        OUTCOME_WORDS[one.outcome],
        one.label,
        batch(one),
        format_bytes(one.peak_reserved_bytes or one.peak_allocated_bytes),
        format_bytes(job.usable_bytes),
        format_rate(one.tokens_per_s),
        (job.reason if first else None) or _why(one),
    )


def _why(one: ProbeResult) -> str:
    return "" if one.outcome == "fits" else one.reason or ""
