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


def speed(result: ProbeResult, plus_minus: str) -> str:
    """Tokens per second with the relative spread."""
    rate = format_rate(result.tokens_per_s)
    if result.tokens_per_s is None or result.tokens_per_s_spread is None:
        return rate
    return f"{rate} {plus_minus}{format_percent(result.tokens_per_s_spread, 1)}"


def short_count(count: int) -> str:
    """`1M`, `2.5B`: as people type it."""
    text = format_count(count)
    number, suffix = text.rstrip("kMBT"), text[len(text.rstrip("kMBT")) :]
    return (number.rstrip("0").rstrip(".") if "." in number else number) + suffix
