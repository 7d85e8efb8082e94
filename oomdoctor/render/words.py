"""Words and figures of a result that several parts of the page share."""

from __future__ import annotations

from oomdoctor.records.report import Report
from oomdoctor.records.result import ProbeResult
from oomdoctor.units import DASH, format_count, format_percent, format_rate

OUTCOME_WORDS = {
    "fits": "fits",
    "oom": "out of memory",
    "host_oom": "out of host memory",
    "unsupported": "unsupported",
    "failed": "failed",
    "crashed": "crashed",
    "timed_out": "timed out",
    "skipped": "skipped",
}
SWEPT_WORDS = {"sequence_length": "sequence length", "micro_batch_size": "micro-batch size"}


def ranked_results(report: Report) -> list[ProbeResult]:
    """The results that fit in the order of the ranking; any that it leaves out come last."""
    place = {key: number for number, key in enumerate(report.ranking)}
    fitting = [result for result in report.results if result.outcome == "fits"]
    return sorted(fitting, key=lambda result: place.get(result.key, len(place)))


def batch(result: ProbeResult) -> str:
    """Micro-batch size x accumulation steps; a dash before one is chosen."""
    if result.micro_batch_size is None:
        return DASH
    return f"{result.micro_batch_size} x {result.gradient_accumulation_steps or DASH}"


def estimate(per_second: float | None, result: ProbeResult) -> str:
    """A rate of a result, with `~` before it where it was predicted."""
    rate = format_rate(per_second)
    return f"~{rate}" if per_second is not None and result.evidence == "predicted" else rate


def speed(result: ProbeResult, plus_minus: str) -> str:
    """Tokens per second with the relative spread, or the uncertainty of an estimate."""
    rate, spread = estimate(result.tokens_per_s, result), result.tokens_per_s_spread
    if result.tokens_per_s is None or spread is None:
        return rate
    return (
        f"{rate} {plus_minus}{format_percent(spread, 0 if result.evidence == 'predicted' else 1)}"
    )


def short_count(count: int) -> str:
    """`1M`, `2.5B`: as people type it."""
    text = format_count(count)
    number, suffix = text.rstrip("kMBT"), text[len(text.rstrip("kMBT")) :]
    return (number.rstrip("0").rstrip(".") if "." in number else number) + suffix
