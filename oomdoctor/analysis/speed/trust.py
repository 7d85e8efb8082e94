"""How far measured times can be trusted: did they settle, and were other processes in the way?

A speed that did not settle is shown, but rungs are not ranked by it.
"""

from __future__ import annotations

from collections.abc import Iterable

from oomdoctor.analysis.speed.throughput import tokens_per_s_spread
from oomdoctor.records.configuration.config import TrainConfig
from oomdoctor.records.job.measurement import Load, Timing
from oomdoctor.records.job.result import ProbeResult, SpeedState
from oomdoctor.units import format_percent

# Rungs whose speeds differ by less than this are alike for most purposes. The spread of a shared
# machine that is not overloaded stays below it.
MOST_SPREAD = 0.10
_FEWEST_STEPS = 3  # fewer do not show how much they vary
_DISTURBING = 0.10  # of the threads that the worker runs, or of the time of a GPU
UNRANKED: tuple[SpeedState | None, ...] = ("not_settled", "not_believable")


def settled(timing: Timing, config: TrainConfig) -> bool:
    """Whether the times varied little enough to rank by them; estimates do not vary."""
    if timing.stopped_by in ("spread", "estimated"):
        return True
    spread = tokens_per_s_spread(timing, config)
    return timing.timed_steps >= _FEWEST_STEPS and spread is not None and spread <= MOST_SPREAD


def disturbed(load: Load | None) -> bool:
    """Whether other processes used what the timed steps needed.

    Other processes do no harm on cores that the worker's threads leave free.
    """
    if load is None:
        return False
    if load.foreign_gpu is not None and load.foreign_gpu > _DISTURBING:
        return True
    harmless = load.cpus - load.threads + _DISTURBING * load.threads
    return load.foreign_cpus is not None and load.foreign_cpus > harmless


def timing_notes(timing: Timing, config: TrainConfig) -> tuple[str, ...]:
    """What a reader has to know about the times of a rung."""
    notes = []
    if not settled(timing, config):
        steps = "1 timed step" if timing.timed_steps == 1 else f"{timing.timed_steps} timed steps"
        spread = tokens_per_s_spread(timing, config)
        varied = "" if spread is None else f"{steps} varied by {format_percent(spread, 1)}"
        notes.append(f"speed not settled: {varied or f'only {steps}'}")
    if disturbed(timing.load):
        notes.append("other processes used the device while it was timed")
    return tuple(notes)


def disturbing(results: Iterable[ProbeResult]) -> list[Load]:
    """What other processes took from the rungs that fit, where they were in the way."""
    timings = [r.measurement.timing for r in results if r.measurement and r.outcome == "fits"]
    loads = [timing.load for timing in timings if timing is not None and timing.load is not None]
    return [load for load in loads if disturbed(load)]
