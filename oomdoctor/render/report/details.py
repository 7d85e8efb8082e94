"""Everything known about each rung, for `--verbose`: phases, breakdown, tries, times, logs."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields

from oomdoctor.records.config import TrainConfig
from oomdoctor.records.measurement import Breakdown, Measurement, Timing
from oomdoctor.records.report import Report
from oomdoctor.records.result import PredictedPeak, ProbeResult
from oomdoctor.render.blocks import Block, Column, Facts, Grid, Note, Section, Verbatim
from oomdoctor.render.text import log_lines
from oomdoctor.render.words import OUTCOME_WORDS, estimate
from oomdoctor.units import (
    DASH,
    format_bytes,
    format_count,
    format_percent,
    format_rate,
    format_seconds,
)

_STOPPED_BY = {
    "spread": "the spread being small enough",
    "step_limit": "the limit of steps",
    "time_limit": "the time limit",
}
_BREAKDOWN = (
    ("weights_bytes", "weights"),
    ("gradients_bytes", "gradients"),
    ("optimizer_bytes", "optimizer states"),
    ("activations_bytes", "activations"),
    ("logits_bytes", "logits"),
    ("other_bytes", "other"),
)


def detail_sections(report: Report, plus_minus: str) -> list[Section]:
    """One section a rung in the order of the ladder, and one with all library versions."""
    sections = [
        Section(
            _title(result),
            tuple(_rung(report, result, plus_minus)),
        )
        for result in report.results
    ]
    if report.machine is not None:
        versions = _versions(report.machine.versions)
        sections.append(Section("Versions", (Note(versions, "normal"),)))
    return sections


def _rung(report: Report, result: ProbeResult, plus_minus: str) -> list[Block]:
    measured = result.measurement
    pairs = [("key", result.key), ("config", _config(result.config))]
    place = report.ranking_reasons.get(result.key)
    if place:
        pairs.append(("place", place))
    if result.reason:
        pairs.append(("reason", result.reason))
    if result.oom is not None:
        pairs.append(("message", result.oom.message))
    if result.predicted is not None:
        pairs.append(("predicted", _predicted(result, result.predicted)))
    if measured is not None:
        pairs += _measured(report, measured, plus_minus)
    if result.mfu is not None:
        pairs.append(("MFU", format_percent(result.mfu, 1)))
    if result.samples_per_s is not None:
        pairs.append(("samples/s", format_rate(result.samples_per_s)))
    blocks: list[Block] = [Facts(tuple(pairs))]
    if result.tries:
        blocks.append(_tries(result))
    if measured is not None and measured.phases:
        blocks.append(_phases(measured))
    if result.breakdown is not None:
        blocks.append(_breakdown(result.breakdown))
    return blocks + _failure(result)


def _measured(report: Report, measured: Measurement, plus_minus: str) -> list[tuple[str, str]]:
    share = measured.trainable_parameters / measured.parameters if measured.parameters else None
    pairs = [
        (
            "trainable",
            f"{format_count(measured.trainable_parameters)} of "
            f"{format_count(measured.parameters)} parameters ({format_percent(share, 2)})",
        ),
        ("peak", _peaks(measured)),
    ]
    if measured.allocation_retries is not None:
        pairs.append(("retries", f"{measured.allocation_retries} allocation retries"))
    if measured.timing is not None:
        pairs.append(("time", _timing(measured.timing, plus_minus)))
    if measured.attention_kernel is not None:
        pairs.append(("attention", measured.attention_kernel))
    if measured.losses:
        pairs.append(("loss", ", ".join(map(format_rate, measured.losses))))
    if measured.notes:
        pairs.append(("notes", "; ".join(measured.notes)))
    if report.machine is None or measured.versions != report.machine.versions:
        pairs.append(("versions", _versions(measured.versions)))
    if measured.memory_stats:
        stats = ", ".join(f"{name}={value}" for name, value in measured.memory_stats.items())
        pairs.append(("allocator", stats))
    return pairs


def _peaks(measured: Measurement) -> str:
    parts = [
        (format_bytes(size), name)
        for size, name in (
            (measured.peak_allocated_bytes, "allocated"),
            (measured.peak_reserved_bytes, "reserved"),
            (measured.peak_device_bytes, "of the device"),
            (measured.overhead_bytes, "of that for context and libraries"),
            (measured.managed_bytes or None, "managed"),
            (measured.peak_rss_bytes, "process RSS"),
        )
        if size is not None
    ]
    return ", ".join(f"{size} {name}" for size, name in parts)


def _timing(timing: Timing, plus_minus: str) -> str:
    def with_spread(seconds: float, spread: float | None) -> str:
        text = format_seconds(seconds)
        return text if spread is None else f"{text} {plus_minus}{format_percent(spread, 1)}"

    steps = (
        f"micro-step {with_spread(timing.micro_step_s, timing.micro_step_spread)}, "
        f"optimizer step {with_spread(timing.optimizer_step_s, timing.optimizer_step_spread)}"
    )
    if timing.stopped_by == "estimated":
        return f"{steps}; estimated from the operators and the card's peaks"
    return (
        f"{steps}, first untraced step {format_seconds(timing.first_untraced_step_s)}; "
        f"{timing.warmup_steps} warm-up and "
        f"{timing.timed_steps} timed steps, ended by {_STOPPED_BY[timing.stopped_by]}"
    )


def _tries(result: ProbeResult) -> Grid:
    rows = tuple(
        (
            f"mb {attempt.micro_batch_size}",
            OUTCOME_WORDS[attempt.outcome],
            format_bytes(attempt.peak_bytes),
            estimate(attempt.tokens_per_s, result),
            attempt.reason or "",
        )
        for attempt in result.tries
    )
    columns = (
        Column("try"),
        Column("outcome", tone=True),
        Column("peak", 1, right=True, detail="peak {}"),
        Column("tokens/s", 2, right=True, detail="{} tokens/s"),
        Column("why", 3, wraps=True),
    )
    return Grid(columns, rows)


def _phases(measured: Measurement) -> Grid:
    rows = []
    for name, worst in measured.phases.items():
        first, steady = measured.first_step.get(name), measured.steady.get(name)
        rows.append(
            (
                name,
                format_bytes(worst.peak_allocated_bytes),
                format_bytes(worst.peak_reserved_bytes),
                format_bytes(first.peak_allocated_bytes if first else None),
                format_bytes(steady.peak_allocated_bytes if steady else None),
            )
        )
    columns = (
        Column("phase"),
        Column("peak allocated", right=True),
        Column("reserved", 2, right=True, detail="reserved {}"),
        Column("first step", 1, right=True, detail="first step {}"),
        Column("steady", 1, right=True, detail="steady {}"),
    )
    return Grid(columns, tuple(rows))


def _breakdown(parts: Breakdown) -> Grid:
    total = sum(getattr(parts, name) for name, _ in _BREAKDOWN)
    rows = tuple(
        (
            word,
            format_bytes(getattr(parts, name)),
            format_percent(getattr(parts, name) / total if total else None),
        )
        for name, word in _BREAKDOWN
    )
    return Grid(
        (Column("at the peak"), Column("size", right=True), Column("share", right=True)), rows
    )


def _failure(result: ProbeResult) -> list[Block]:
    failure = result.failure
    if failure is None:
        return []
    told = [("failure", failure.code), ("message", failure.message)]
    for name, value in (
        ("exit code", failure.exit_code),
        ("signal", failure.signal),
        ("last phase", failure.last_phase),
    ):
        told.append((name, DASH if value is None else str(value)))
    blocks: list[Block] = [Facts(tuple(told))]
    tail = log_lines(failure.log_tail)
    if tail:
        blocks += [Note("end of the log:"), Verbatim(tuple(f"  {line}" for line in tail))]
    return blocks


def _title(result: ProbeResult) -> str:
    parts = [OUTCOME_WORDS[result.outcome]]
    if result.evidence == "predicted":
        parts.append("predicted")
    if result.elapsed_s:
        parts.append(format_seconds(result.elapsed_s))
    return f"{result.label}: {', '.join(parts)}"


def _predicted(result: ProbeResult, predicted: PredictedPeak) -> str:
    """Each predicted peak with its gap to the measured one."""
    told = []
    for word in ("allocated", "reserved", "device"):
        expected = getattr(predicted, f"peak_{word}_bytes")
        measured = getattr(result, f"peak_{word}_bytes")
        if expected is None:
            continue
        gap = f" ({(expected - measured) / measured:+.1%})" if measured else ""
        told.append(f"{word} {format_bytes(expected)}{gap}")
    return ", ".join(told) or "-"


def _config(config: TrainConfig) -> str:
    """Method, dtype and every setting that differs from its default."""
    told = []
    for field in fields(config):
        value = getattr(config, field.name)
        if field.name in ("method", "weights_dtype") or value != field.default:
            text = "+".join(value) if isinstance(value, tuple) else str(value)
            told.append(f"{field.name}={text.lower() if isinstance(value, bool) else text}")
    return ", ".join(told)


def _versions(versions: Mapping[str, str | None]) -> str:
    return ", ".join(f"{name} {version or DASH}" for name, version in versions.items())
