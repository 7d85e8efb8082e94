"""How long the rows of a data set are, and what each rung needs for them."""

from __future__ import annotations

from oomdoctor.records.job.dataset import LengthDistribution, LengthPeak, LengthsAnswer, LengthShape
from oomdoctor.records.report.report import Report
from oomdoctor.render.blocks import Block, Column, Facts, Grid, Look, Note, Section, figures
from oomdoctor.render.words import counted
from oomdoctor.units import DASH, format_bytes, format_count, format_percent, format_rate

_SHAPES = {"longest": "longest row", "p95": "95th percentile", "packed": "packed"}
_LEGEND = (
    "(brackets): does not fit. After each size comes the micro-batch size (mb): the best one, or "
    "the smallest one tried where nothing fits. A batch is padded to its longest row."
)


def length_sections(report: Report, look: Look) -> list[Section]:
    """The verdict, the distribution, and a table of rungs if there is one card."""
    answer = report.lengths
    if answer is None:
        return []
    lengths = answer.distribution
    verdict = tuple(Note(f"{text}.", "strong") for text in answer.verdict)
    sections = [
        Section(
            "Row lengths", (*verdict, Facts(tuple(_facts(lengths, look.verbose))), _bins(lengths))
        )
    ]
    if answer.lines and len(report.cards) == 1:
        title = "Memory by row length"
        sections.append(Section(title, (_peaks(answer), Note(_LEGEND))))
    return sections


def _facts(lengths: LengthDistribution, verbose: bool) -> list[tuple[str, str]]:
    named = lengths.tokenizer
    by = f"{named} (approximate)" if lengths.approximate else f"the tokenizer of {named}"
    sources = ", ".join(
        f"{name} ({counted(rows, 'row')})" for name, rows in lengths.sources.items()
    )
    pairs = [
        ("File", f"{lengths.file}, {lengths.rows:,} rows, {format_count(lengths.tokens)} tokens"),
        ("Counted by", by),
        ("Text field", sources),
        (
            "Tokens per row",
            f"median {lengths.p50:,}, 90th percentile {lengths.p90:,}, 95th {lengths.p95:,}, "
            f"99th {lengths.p99:,}, longest {lengths.longest.tokens:,}",
        ),
        ("Longest rows", ", ".join(f"{r.row:,} ({r.tokens:,})" for r in lengths.longest_rows)),
    ]
    if lengths.unread_rows:
        reasons = "; ".join(
            f"row {row.row:,} {row.reason}" for row in lengths.unread[: None if verbose else 3]
        )
        pairs.append(("Not counted", f"{counted(lengths.unread_rows, 'row')}: {reasons}"))
    if verbose and lengths.elapsed_s:
        pairs.append(("Speed", f"{format_rate(lengths.rows / lengths.elapsed_s)} rows/s"))
    return pairs


def _bins(lengths: LengthDistribution) -> Grid:
    """The histogram: how many rows have how many tokens."""
    rows = []
    low = 0
    for group in lengths.histogram:
        share = group.rows / lengths.rows
        percent = format_percent(share, 3 if 0 < share < 0.001 else 1)
        rows.append((f"{low:,} to {group.up_to_tokens:,}", f"{group.rows:,}", percent))
        low = group.up_to_tokens + 1
    columns = (figures("tokens"), figures("rows"), figures("share"))
    return Grid(columns, tuple(rows))


def _peaks(answer: LengthsAnswer) -> Block:
    rows = tuple((line.label, *map(_peak, line.peaks)) for line in answer.lines)
    shapes = tuple(
        figures(_head(shape), place, f"{_head(shape)}: {{}}")
        for place, shape in enumerate(answer.shapes, 1)
    )
    return Grid((Column("config"), *shapes), rows)


def _head(shape: LengthShape) -> str:
    return f"{_SHAPES[shape.name]}: {shape.tokens:,}"


def _peak(peak: LengthPeak) -> str:
    if peak.fits is None:
        return DASH
    size = f", mb {peak.micro_batch_size}" if peak.micro_batch_size else ""
    text = f"{format_bytes(peak.peak_device_bytes)}{size}"
    return text if peak.fits else f"({text})"
