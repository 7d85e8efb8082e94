"""Everything that is known about each rung, for `--verbose`: a section a rung."""

from __future__ import annotations

from collections.abc import Mapping

from oomdoctor.analysis.command_line import settings_beyond
from oomdoctor.records.configuration.config import TrainConfig
from oomdoctor.records.facts.categories import TABLE
from oomdoctor.records.job.measurement import Breakdown, Measurement, Timing
from oomdoctor.records.job.result import OUTCOME_WORDS, PredictedPeak, ProbeResult, Try
from oomdoctor.records.report.report import Report
from oomdoctor.render import blocks
from oomdoctor.render.blocks import Block, Column, Facts, Grid, Look, Note, Section, Verbatim
from oomdoctor.render.text import log_lines
from oomdoctor.render.words import BOUND_WORDS, estimate
from oomdoctor.units import (
    DASH,
    format_bytes,
    format_count,
    format_percent,
    format_rate,
    format_seconds,
)

_USUAL = TrainConfig()
_STOPPED = {
    "spread": "stopped when the spread was small enough",
    "step_limit": "stopped at the step limit",
    "time_limit": "stopped at the time limit",
}


def detail_sections(report: Report, look: Look) -> list[Section]:
    """One section a rung, in the order of the ladder."""
    return [
        Section(_title(result), tuple(_rung(report, result, look.plus_minus)))
        for result in report.results
    ]


def version_sections(report: Report, _: Look) -> list[Section]:
    """All versions of libraries."""
    if report.machine is None:
        return []
    return [Section("Versions", (Note(_versions(report.machine.versions), "normal"),))]


def _title(result: ProbeResult) -> str:
    parts = [OUTCOME_WORDS[result.outcome]]
    if result.evidence != "measured":
        parts.append(result.evidence)
    if result.elapsed_s:
        parts.append(f"took {format_seconds(result.elapsed_s)}")
    return f"{result.label}: {', '.join(parts)}"


def _rung(report: Report, result: ProbeResult, plus_minus: str) -> list[Block]:
    measured = result.measurement
    in_tries = any(attempt.reason == result.reason for attempt in result.tries)
    pairs: list[tuple[str, str | None]] = [
        ("key", result.key),
        ("config", ", ".join(settings_beyond(_USUAL, result.config, ("method", "weights_dtype")))),
        ("rank", report.ranking_reasons.get(result.key)),
        ("reason", None if in_tries else result.reason),
        (
            "likely message" if result.evidence == "predicted" else "message",
            result.oom.message if result.oom is not None else None,
        ),
        ("predicted", _predicted(result, result.predicted) if result.predicted else None),
    ]
    if measured is not None:
        pairs += _measured(report, measured, plus_minus)
    pairs.append(("ranks", _ranks(result)))
    if result.host_peak_bytes is not None:
        size = format_bytes(result.host_peak_bytes)
        pairs.append(("host memory", f"{size} on each machine, for all of its ranks"))
    bound = measured.timing.bound if measured is not None and measured.timing is not None else None
    if bound is not None:
        pairs.append(("micro-step", f"bound by {BOUND_WORDS[bound]}"))
    if result.mfu is not None and result.mfu <= 1:
        pairs.append(("MFU", format_percent(result.mfu, 1)))
    if result.samples_per_s is not None:
        pairs.append(("samples/s", format_rate(result.samples_per_s)))
    parts: list[Block] = [Facts(tuple((name, text) for name, text in pairs if text))]
    if result.tries:
        parts.append(try_table(result))
    if measured is not None and measured.phases:
        parts.append(phase_table(measured))
    if result.breakdown is not None:
        parts.append(breakdown_table(result.breakdown))
    return parts + _failure(result)


def _ranks(result: ProbeResult) -> str | None:
    """The peaks of each rank that ran, and how far they are apart."""
    ranks, world = result.ranks, result.config.world_size
    if not ranks:
        return None
    if len(ranks) == 1:
        return f"rank {ranks[0].rank} ran, and stands for all {world}" if world > 1 else None
    peaks = [rank.peak_allocated_bytes for rank in ranks]
    each = ", ".join(
        f"rank {rank.rank} {format_bytes(rank.peak_allocated_bytes)}" for rank in ranks
    )
    return f"allocated by {each}; spread {format_bytes(max(peaks) - min(peaks))}"


def _measured(
    report: Report, measured: Measurement, plus_minus: str
) -> list[tuple[str, str | None]]:
    share = measured.trainable_parameters / measured.parameters if measured.parameters else None
    retries = measured.allocation_retries
    other_versions = report.machine is None or measured.versions != report.machine.versions
    trained, total = map(format_count, (measured.trainable_parameters, measured.parameters))
    return [
        ("trainable", f"{trained} of {total} parameters ({format_percent(share, 2)})"),
        ("peak", _peaks(measured)),
        ("retries", None if retries is None else f"{retries} allocation retries"),
        ("time", _timing(measured.timing, plus_minus) if measured.timing else None),
        ("attention", measured.attention_kernel),
        ("loss", ", ".join(map(format_rate, measured.losses))),
        ("notes", "; ".join(measured.notes)),
        ("versions", _versions(measured.versions) if other_versions else None),
        ("allocator", ", ".join(f"{key}={n}" for key, n in measured.memory_stats.items())),
    ]


def _peaks(measured: Measurement) -> str:
    parts = [
        (measured.peak_allocated_bytes, "allocated"),
        (measured.peak_reserved_bytes, "reserved"),
        (measured.peak_device_bytes, "on the device"),
        (measured.overhead_bytes, "of it for the CUDA context and libraries"),
        (measured.managed_bytes or None, "of managed memory"),
        (measured.peak_rss_bytes, "process RSS"),
    ]
    return ", ".join(f"{format_bytes(size)} {name}" for size, name in parts if size is not None)


def _timing(timing: Timing, plus_minus: str) -> str:
    def with_spread(seconds: float, spread: float | None) -> str:
        text = format_seconds(seconds)
        return text if spread is None else f"{text} {plus_minus}{format_percent(spread, 1)}"

    steps = (
        f"micro-step {with_spread(timing.micro_step_s, timing.micro_step_spread)}, "
        f"optimizer step {with_spread(timing.optimizer_step_s, timing.optimizer_step_spread)}"
    )
    if timing.stopped_by == "estimated":
        return f"{steps}; estimated from the operators and the card's peak rates"
    return (
        f"{steps}, first untraced step {format_seconds(timing.first_untraced_step_s)}; "
        f"{timing.warmup_steps} warm-up and {timing.timed_steps} timed steps, "
        f"{_STOPPED[timing.stopped_by]}"
    )


def _predicted(result: ProbeResult, predicted: PredictedPeak) -> str:
    """Each predicted peak, with its error if the peak was measured."""
    parts = []
    for word in ("allocated", "reserved", "device"):
        expected = getattr(predicted, f"peak_{word}_bytes")
        measured = getattr(result, f"peak_{word}_bytes")
        if expected is None:
            continue
        error = f" ({(expected - measured) / measured:+.1%})" if measured else ""
        parts.append(f"{word} {format_bytes(expected)}{error}")
    return ", ".join(parts) or DASH


def _failure(result: ProbeResult) -> list[Block]:
    failure = result.failure
    if failure is None:
        return []
    pairs = [
        ("failure", failure.code),
        ("message", failure.message),
        ("exit code", None if failure.exit_code is None else str(failure.exit_code)),
        ("signal", failure.signal),
        ("last phase", failure.last_phase),
    ]
    parts: list[Block] = [Facts(tuple((name, text) for name, text in pairs if text))]
    tail = log_lines(failure.log_tail)
    if tail:
        parts += [Note("end of the log:"), Verbatim(tuple(f"  {line}" for line in tail))]
    return parts


def _versions(versions: Mapping[str, str | None]) -> str:
    return ", ".join(f"{name} {version or DASH}" for name, version in versions.items())


def try_table(result: ProbeResult) -> Grid:
    """Every micro-batch size that was tried."""
    cells: blocks.Cells[Try] = (
        (blocks.figures("micro-batch"), lambda tried: str(tried.micro_batch_size)),
        (Column("outcome", tone=True), lambda tried: OUTCOME_WORDS[tried.outcome]),
        (blocks.figures("peak", 1), _peak),
        (blocks.figures("tokens/s", 2, "{} tokens/s"), lambda o: estimate(o.tokens_per_s, result)),
        (Column("reason", 3, wraps=True), lambda tried: tried.reason or ""),
    )
    return blocks.table_of(result.tries, cells)


def _peak(attempt: Try) -> str:
    return "at least " * attempt.peak_is_lower_bound + format_bytes(attempt.peak_bytes)


def phase_table(measured: Measurement) -> Grid:
    """The peak of each phase. Optimizer states are created in the first step."""
    rows = []
    for name, worst in measured.phases.items():
        steps = (measured.first_step.get(name), measured.steady.get(name))
        later = (step.peak_allocated_bytes if step else None for step in steps)
        sizes = (worst.peak_allocated_bytes, worst.peak_reserved_bytes, *later)
        rows.append((name, *map(format_bytes, sizes)))
    columns = (
        Column("phase"),
        blocks.figures("peak allocated"),
        blocks.figures("reserved", 2),
        blocks.figures("first step", 1),
        blocks.figures("later steps", 1),
    )
    return Grid(columns, tuple(rows))


def breakdown_table(parts: Breakdown) -> Grid:
    """What was in memory at the peak."""
    sizes = parts.sizes()
    total = sum(sizes.values())
    cells: blocks.Cells[tuple[str, int]] = (
        (Column("at peak"), lambda part: TABLE[part[0]].words),
        (blocks.figures("size"), lambda part: format_bytes(part[1])),
        (blocks.figures("share"), lambda part: format_percent(part[1] / total if total else None)),
    )
    return blocks.table_of(sizes.items(), cells)
