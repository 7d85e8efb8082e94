"""The order of the rungs that fit, the reason for each place, and the best of each method."""

from __future__ import annotations

import math
import sys
from collections.abc import Iterable, Sequence

from oomdoctor.records.configuration.adapters import compute_dtype
from oomdoctor.records.configuration.config import uses_host
from oomdoctor.records.job.result import ProbeResult
from oomdoctor.records.report.report import Picks, RankBy, Ranking, Report
from oomdoctor.units import format_bytes, format_rate

# The part of an estimate's error that is its own. The rest is in the rates of the card, and so the
# same for all rungs of a model that wait for the same. Published runs of a model on an A100, full,
# LoRA and QLoRA, have errors at most 6.2 points apart, where single ones are off by up to 14.4%
# (scripts/evaluation/speed.py). A quarter of the stated error on either side is about twice that.
_OWN_ERROR = 0.25


def rank(results: tuple[ProbeResult, ...], by: RankBy) -> Ranking:
    """Best first: the highest throughput, the lowest peak, or the largest micro-batch that fits.

    Only what surely fits has a place: a borderline rung has none and is no pick. Where speeds do
    not compare, the peak decides instead of the throughput (`ranked_by`). Estimated speeds that
    are too close to call are equal (`ties`). Ties are broken by the lower peak, then the
    higher throughput, then the given order. A rung without the ranked figure comes last. By
    throughput, a rung whose times cannot be trusted has no place and is no pick; it only has a
    reason.
    """
    by = ranked_by(results, by)
    all_fitting = [result for result in results if result.surely_fits]
    fitting = [r for r in all_fitting if by != "throughput" or r.speed_state not in _WHY_APART]
    order = ordered(fitting, by)
    best = min(order, key=lambda result: _place(result, by), default=None)
    reasons = {
        result.key: _reason(result, best, by, first=place == 0, of=len(order))
        for place, result in enumerate(order)
        if best is not None
    }
    reasons |= {
        result.key: f"not ranked: {_WHY_APART[result.speed_state or '']}"
        for result in all_fitting
        if result.key not in reasons
    }
    picks: dict[str, str] = {}
    for result in order:
        picks.setdefault(result.config.method, result.key)
    return Ranking(
        tuple(result.key for result in order),
        reasons,
        Picks(full=picks.get("full"), lora=picks.get("lora"), qlora=picks.get("qlora")),
    )


def in_order(report: Report) -> tuple[ProbeResult, ...]:
    """All rungs of a report, as every page lists them, and as `export` counts them.

    The ranked ones first; then those that fit without a place, and the borderline ones, the lowest
    peak first; then those that do not fit, the nearest first; then those without numbers.
    """
    places = {key: place for place, key in enumerate(report.ranking)}

    def place(result: ProbeResult) -> tuple[int, int]:
        if result.key in places:
            return 0, places[result.key]
        if result.borderline:
            return 2, result.deciding_peak_bytes() or 0
        if result.outcome == "fits":
            return 1, 0
        if result.missed_by_bytes is not None:
            return 3, result.missed_by_bytes
        return (3, sys.maxsize) if result.outcome in ("oom", "host_oom") else (4, 0)

    return tuple(sorted(report.results, key=place))


def ties(order: Sequence[ProbeResult]) -> list[list[ProbeResult]]:
    """The rungs of a ranking by speed in groups of equals, in the given order of the groups.

    The fastest rung leads a group, and each whose interval overlaps the leader's belongs to it;
    the fastest of the others leads the next. Only estimates tie: a measured speed stands alone.
    """
    left, groups = sorted(order, key=lambda result: _key(result, "throughput")), []
    while left:
        leader = left[0]
        group = [result for result in left if result is leader or too_close(leader, result)]
        groups.append([result for result in order if result in group])
        left = [result for result in left if result not in group]
    return groups


def too_close(leader: ProbeResult, other: ProbeResult) -> bool:
    """Whether an estimate is above another by less than what their errors do not share."""
    if not leader.speed_state == other.speed_state == "estimated":
        return False
    if leader.tokens_per_s is None or other.tokens_per_s is None:
        return False
    ours, theirs = (
        (result.tokens_per_s or 0.0) * (result.tokens_per_s_spread or 0.0)
        for result in (leader, other)
    )
    rates = _rates_of(leader)
    shared = rates is not None and rates == _rates_of(other)
    error = _OWN_ERROR * (ours + theirs) if shared else math.hypot(ours, theirs)
    return leader.tokens_per_s - other.tokens_per_s <= error


def _rates_of(result: ProbeResult) -> tuple[object, ...] | None:
    """What the rates behind an estimate depend on, of one model on one card; None if unknown.

    Those of a compiled model are others: torch.compile gave published runs of one model four times
    the speed, and those of another none.
    """
    config, timing = result.config, result.measurement.timing if result.measurement else None
    if timing is None or timing.limited_by is None:
        return None
    engine = config.sharding, config.world_size
    dtype, length = compute_dtype(config), result.sequence_length
    return timing.limited_by, dtype, length, engine, config.compile, config.tf32


def ordered(fitting: Sequence[ProbeResult], by: RankBy) -> list[ProbeResult]:
    """The rungs best first; of estimated speeds too close to call, the lowest peak first."""
    order = sorted(fitting, key=lambda result: _place(result, by))
    if by != "throughput":
        return order
    return [result for group in ties(order) for result in sorted(group, key=_tie)]


def ranked_by(results: Iterable[ProbeResult], by: RankBy) -> RankBy:
    """What decides the order: by throughput, it is memory where speeds do not compare.

    Too few rates of a card may be published for some rungs. They have no estimate, and must not
    lose to slow rungs that have one. Rungs that use the host never have one: they do not count.
    An emulated GPU has no speeds at all.
    """
    fitting = [result for result in results if result.surely_fits]
    measured = any(r.evidence == "measured" and r.tokens_per_s is not None for r in fitting)
    if by != "throughput" or measured:
        return by
    only_emulated = all(r.evidence == "emulated" and r.tokens_per_s is None for r in fitting)
    return "memory" if without_speed(fitting) or (fitting and only_emulated) else by


def without_speed(results: Iterable[ProbeResult]) -> list[ProbeResult]:
    """The rungs that fit, but were not measured and have no estimate of their speed."""
    fitting = (r for r in results if r.surely_fits and r.evidence != "measured")
    return [r for r in fitting if r.tokens_per_s is None and not uses_host(r.config)]


def best(results: tuple[ProbeResult, ...], by: RankBy) -> ProbeResult:
    """The first of rungs that all fit; they may be of several cards."""
    return ordered(results, ranked_by(results, by))[0]


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
    peak, other = result.deciding_peak_bytes(), best.deciding_peak_bytes()
    if by == "memory":
        if peak is None or other is None:
            return "its peak is unknown"
        if first:
            return f"the lowest peak of {of}: {format_bytes(peak)}"
        return f"{format_bytes(peak - other)} more than the lowest peak"
    if by == "micro-batch":
        size, largest = result.max_micro_batch_size, best.max_micro_batch_size
        if size is None:
            return "its largest micro-batch size is unknown"
        if first:
            return f"the largest micro-batch size of {of}: {size}"
        tied = f"the same micro-batch size at a peak of {format_bytes(peak)}"
        return tied if size == largest else f"micro-batch size {size}"
    rate, fastest = result.tokens_per_s, best.tokens_per_s
    if rate is None or fastest is None:
        return "its throughput was not measured"
    if result is best:
        return f"the fastest of {of}: {format_rate(rate)} tokens/s"
    equal = ", too close to call" if too_close(best, result) else ""
    text = f"{rate / fastest:.2f}x the speed of the fastest{equal}"
    if peak is None or other is None or peak == other:
        return text
    word = "less" if peak < other else "more"
    return f"{text}, with {format_bytes(abs(peak - other))} {word} memory"
