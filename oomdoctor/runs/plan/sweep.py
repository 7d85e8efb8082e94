"""How the peak of each rung grows in a sweep, and where it crosses the limit of each card."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from itertools import pairwise

from oomdoctor.records.config import Rung
from oomdoctor.records.planned.plan import PlanRequest, Sweep, SweepAnswer, SweepLine, SweptPeak
from oomdoctor.records.result import Attempt
from oomdoctor.runs.devices.cards import Card
from oomdoctor.runs.plan.tasks import swept

Attempts = Mapping[tuple[str, str], tuple[Attempt, ...]]


def sweep_answer(
    plan: PlanRequest,
    ladder: Callable[[Card], tuple[Rung, ...]],
    cards: tuple[Card, ...],
    attempts: Attempts,
) -> SweepAnswer | None:
    """One line for each card and each rung of its ladder; None without a sweep."""
    if plan.sweep is None:
        return None
    return SweepAnswer(
        key=plan.sweep.key,
        values=plan.sweep.values,
        lines=tuple(
            _line(plan, plan.sweep, rung, card, attempts) for card in cards for rung in ladder(card)
        ),
    )


def _line(plan: PlanRequest, sweep: Sweep, rung: Rung, card: Card, attempts: Attempts) -> SweepLine:
    found = {
        getattr(attempt.config, sweep.key): attempt
        for variant in swept(rung, plan)
        for attempt in attempts.get((card.name, variant.config.key()), ())
    }
    peaks = tuple(_peak(value, found.get(value)) for value in sweep.values)
    sizes = {attempt.config.micro_batch_size for attempt in found.values()}
    size = sizes.pop() if len(sizes) == 1 else None
    reasons = [a.reason for a in found.values() if a.measurement is None and a.reason]
    return SweepLine(
        card=card.name,
        key=rung.config.key(),
        label=rung.label,
        micro_batch_size=size if isinstance(size, int) else None,
        peaks=peaks,
        largest_fitting=max((peak.value for peak in peaks if peak.fits), default=None),
        crossed_at=_crossing(peaks, card.usable_bytes),
        reason=reasons[0] if reasons else None,
    )


def _peak(value: int, attempt: Attempt | None) -> SweptPeak:
    if attempt is None or attempt.measurement is None:
        return SweptPeak(value, None, None)
    measured = attempt.measurement
    return SweptPeak(
        value,
        least_bytes=measured.peak_allocated_bytes + (measured.overhead_bytes or 0),
        fits=attempt.outcome == "fits",
        peak_device_bytes=measured.deciding_peak_bytes(),
    )


def _crossing(peaks: tuple[SweptPeak, ...], usable_bytes: int) -> int | None:
    """Where the straight line from a value that fits to the next one crosses the limit."""
    for low, high in pairwise(peaks):
        if not low.fits or high.fits is not False:
            continue
        assert low.peak_device_bytes is not None and high.peak_device_bytes is not None
        room = usable_bytes - low.peak_device_bytes
        share = room / (high.peak_device_bytes - low.peak_device_bytes)
        return low.value + int(share * (high.value - low.value))
    return None
