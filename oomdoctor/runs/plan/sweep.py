"""How the peak of each rung grows in a sweep, and where it crosses the limit of each card."""

from __future__ import annotations

from oomdoctor.records.config import Rung
from oomdoctor.records.planned.plan import Sweep, SweepAnswer, SweepLine, SweptPeak
from oomdoctor.records.result import Attempt
from oomdoctor.runs.devices.cards import Card
from oomdoctor.runs.plan.findings import Findings
from oomdoctor.runs.plan.tasks import swept


def sweep_answer(known: Findings) -> SweepAnswer | None:
    """One line for each card and each rung of its ladder; None without a sweep."""
    sweep = known.plan.sweep
    if sweep is None:
        return None
    return SweepAnswer(
        key=sweep.key,
        values=sweep.values,
        lines=tuple(
            _line(known, sweep, rung, card) for card in known.cards for rung in known.ladder(card)
        ),
    )


def swept_attempts(known: Findings, card: Card, rung: Rung) -> dict[int, Attempt]:
    """What was simulated of a rung on a card, by the value of the sweep."""
    assert known.plan.sweep is not None
    return {
        getattr(attempt.config, known.plan.sweep.key): attempt
        for variant in swept(rung, known.plan)
        for attempt in known.attempts.get((card.name, variant.config.key()), ())
    }


def _line(known: Findings, sweep: Sweep, rung: Rung, card: Card) -> SweepLine:
    found = swept_attempts(known, card, rung)
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
        largest_fitting=max(
            (peak.value for peak in peaks if peak.fits and not peak.borderline), default=None
        ),
        crossed_at=known.crossings.get((card.name, rung.config.key())),
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
        borderline=attempt.borderline is not None,
    )
