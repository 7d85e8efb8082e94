"""Which measured times correct the estimates for a card: its own, or those of a relative."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from oomdoctor.analysis.speed.calibrated import calibration_of, cpu_facts
from oomdoctor.analysis.speed.limits import can_be_true
from oomdoctor.records.job.costs import CalibratedBy, Calibration, LearnedFactors
from oomdoctor.records.job.machine import GpuFacts
from oomdoctor.system import catalogue
from oomdoctor.system.store.calibration import Learned, newest


def calibrated_speed(
    learned: Learned | None, facts: GpuFacts
) -> tuple[Calibration | None, CalibratedBy | None]:
    """The factors for a card and what they are from; None if nothing was measured.

    `learned` is from configurations on such a card. Operators are from `probe --calibrate` on one,
    or on a card of the same architecture. The factors are relative to estimates, which scale with
    the published peaks of the card. Their error is known only where they were measured.
    """
    own = _timed(lambda other: other == facts)
    timed = own or _timed(lambda other: _are_related(other, facts))
    taught = learned is not None and learned.speed != Calibration()
    if timed is None or timed.times is None or (taught and own is None):
        return (None, None) if learned is None else (learned.speed, learned.calibrated_by())
    where = catalogue.find_gpu(timed.gpu_name)
    assert where is not None  # otherwise it was not chosen
    factors = calibration_of(timed.times, where)
    # What configurations taught corrects the estimates that they were compared with.
    if own is not None:
        return with_learned(factors, own), own.calibrated_by()
    by = CalibratedBy(
        None, None, timed.gpu_name, None, LearnedFactors(), timed.timed_at, relative=True
    )
    return replace(factors, error=None), by


def speed_here(
    learned: Learned | None, facts: GpuFacts | None
) -> tuple[GpuFacts | None, Calibration | None]:
    """The facts and factors of the device of a survey; a CPU has facts once it was measured."""
    if learned is None:
        return facts, None
    if learned.times is None:
        return facts, learned.speed
    here = facts or cpu_facts(learned.gpu_name, learned.times)
    return here, with_learned(calibration_of(learned.times, here), learned)


def with_learned(factors: Calibration, learned: Learned) -> Calibration:
    """The factors of single operators, with those of configurations that were measured after."""
    speed = learned.speed
    return replace(factors, compute=speed.compute, bandwidth=speed.bandwidth, launch=speed.launch)


def _timed(is_meant: Callable[[GpuFacts], bool]) -> Learned | None:
    def is_chosen(learned: Learned) -> bool:
        if learned.times is None:
            return False
        facts = catalogue.find_gpu(learned.gpu_name)
        return facts is not None and is_meant(facts) and can_be_true(learned.speed, facts)

    return newest(is_chosen)


def _are_related(card: GpuFacts, other: GpuFacts) -> bool:
    return (card.vendor, card.architecture, card.compute_capability) == (
        other.vendor,
        other.architecture,
        other.compute_capability,
    )
