"""Probes on several GPU types as one table, and as CSV: a row a rung that fits, or the reason."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from oomdoctor.records.report import Report
from oomdoctor.records.result import OUTCOME_WORDS, ProbeResult
from oomdoctor.records.triage import GatheredJob
from oomdoctor.render.blocks import Column, Grid, Look, Note, Section
from oomdoctor.render.words import batch, counted
from oomdoctor.units import format_bytes, format_rate

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
    yield ["gpu_type", "job", "status", "gpu_name", "usable_bytes", "label", "outcome",
           "micro_batch_size", "peak_bytes", "tokens_per_s", "reason"]  # fmt: skip
    for job in report.gathered:
        head = [job.gpu_type, job.job, job.outcome, job.gpu_name, job.usable_bytes]
        for one in job.results:
            yield [*head, one.label, one.outcome, one.micro_batch_size,
                   one.peak_reserved_bytes or one.peak_allocated_bytes,
                   one.tokens_per_s, one.reason or job.reason]  # fmt: skip
        if not job.results:
            yield [*head, None, None, None, None, None, job.reason]


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
