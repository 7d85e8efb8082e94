"""The order of the rungs that fit, the reason for each place, and the best of each method."""

from __future__ import annotations

from collections.abc import Iterable

from oomdoctor.analysis.speed.trust import UNRANKED
from oomdoctor.records.config import uses_host
from oomdoctor.records.report import Picks, RankBy, Ranking
from oomdoctor.records.result import ProbeResult
from oomdoctor.units import format_bytes, format_rate


def rank(results: tuple[ProbeResult, ...], by: RankBy) -> Ranking:
    """Best first: the highest throughput, the lowest peak, or the largest micro-batch that fits.

    Where speeds do not compare, the peak decides instead of the throughput (`ranked_by`). Ties are
    broken by the lower peak, then the higher throughput, then the given order. A rung without the
    ranked figure comes last. By throughput, a rung whose times cannot be trusted has no place and
    is no pick; it only has a reason.
    """
    by = ranked_by(results, by)
    all_fitting = [result for result in results if result.outcome == "fits"]
    fitting = [r for r in all_fitting if by != "throughput" or r.speed_state not in UNRANKED]
    order = sorted(fitting, key=lambda result: _place(result, by))
    reasons = {
        result.key: _reason(result, order[0], by, first=place == 0, of=len(order))
        for place, result in enumerate(order)
    }
    reasons |= {
        result.key: f"not ranked: {_WHY_APART[result.speed_state or '']}"
        for result in all_fitting
        if result.key not in reasons
    }
    best: dict[str, str] = {}
    for result in order:
        best.setdefault(result.config.method, result.key)
    picks = Picks(full=best.get("full"), lora=best.get("lora"), qlora=best.get("qlora"))
    return Ranking(tuple(result.key for result in order), reasons, picks)


def ranked_by(results: Iterable[ProbeResult], by: RankBy) -> RankBy:
    """What decides the order: by throughput, it is memory where speeds do not compare.

    Too few rates of a card may be published for some rungs. They have no estimate, and must not
    lose to slow rungs that have one. Rungs that use the host never have one: they do not count.
    An emulated GPU has no speeds at all.
    """
    fitting = [result for result in results if result.outcome == "fits"]
    measured = any(r.evidence == "measured" and r.tokens_per_s is not None for r in fitting)
    if by != "throughput" or measured:
        return by
    return "memory" if without_speed(fitting) or _only_emulated(fitting) else by


def without_speed(results: Iterable[ProbeResult]) -> list[ProbeResult]:
    """The rungs that fit, but were not measured and have no estimate of their speed."""
    return [
        result
        for result in results
        if result.outcome == "fits"
        and result.evidence != "measured"
        and result.tokens_per_s is None
        and not uses_host(result.config)
    ]


def _only_emulated(fitting: list[ProbeResult]) -> bool:
    """Whether an emulated GPU gave all the rows, without an estimate for any."""
    return bool(fitting) and all(
        result.evidence == "emulated" and result.tokens_per_s is None for result in fitting
    )


def best(results: tuple[ProbeResult, ...], by: RankBy) -> ProbeResult:
    """The first of rungs that all fit; they may be of several cards."""
    by = ranked_by(results, by)
    return min(results, key=lambda result: _place(result, by))


_WHY_APART = {
    "not_settled": "its speed did not settle",
    "not_believable": "its times are not believable",
}


def _place(result: ProbeResult, by: RankBy) -> tuple[bool, float, bool, float, float]:
    return (*_key(result, by), *_tie(result))


def _key(result: ProbeResult, by: RankBy) -> tuple[bool, float]:
    value = {
        "throughput": result.tokens_per_s,
        "memory": result.deciding_peak_bytes(),
        "micro-batch": result.max_micro_batch_size,
    }[by]
    if value is None:
        return True, 0.0
    return False, value if by == "memory" else -value


def _tie(result: ProbeResult) -> tuple[bool, float, float]:
    peak = result.deciding_peak_bytes()
    return peak is None, peak or 0, -(result.tokens_per_s or 0.0)


def _reason(result: ProbeResult, best: ProbeResult, by: RankBy, *, first: bool, of: int) -> str:
    if by == "memory":
        peak, least = result.deciding_peak_bytes(), best.deciding_peak_bytes()
        if peak is None or least is None:
            return "its peak is unknown"
        if first:
            return f"the lowest peak of {of}: {format_bytes(peak)}"
        return f"{format_bytes(peak - least)} more than the lowest peak"
    if by == "micro-batch":
        size, largest = result.max_micro_batch_size, best.max_micro_batch_size
        if size is None:
            return "its largest micro-batch size is unknown"
        if first:
            return f"the largest micro-batch size of {of}: {size}"
        tied = (
            f"the same micro-batch size at a peak of {format_bytes(result.deciding_peak_bytes())}"
        )
        return tied if size == largest else f"micro-batch size {size}"
    rate, fastest = result.tokens_per_s, best.tokens_per_s
    if rate is None or fastest is None:
        return "its throughput was not measured"
    if first:
        return f"the fastest of {of}: {format_rate(rate)} tokens/s"
    peak, other = result.deciding_peak_bytes(), best.deciding_peak_bytes()
    text = f"{rate / fastest:.2f}x the speed of the fastest"
    if peak is None or other is None or peak == other:
        return text
    word = "less" if peak < other else "more"
    return f"{text}, with {format_bytes(abs(peak - other))} {word} memory"
