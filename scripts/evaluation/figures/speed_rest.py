"""How much of the errors of a stack one time a micro-step explains, beside its operators.

A trainer reads data, waits for the loss and logs between its steps, which no simulation sees. The
time is taken from the runs of the other models of a stack, never from the run it is applied to.
"""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import dataclass, replace

from cases.speeds import Speed

from oomdoctor.analysis.speed.throughput import step_seconds


@dataclass(frozen=True, slots=True)
class Rest:
    """Speeds with the time beside the operators, and the medians that were added, in seconds."""

    speeds: list[Speed]
    least_s: float
    most_s: float


def with_rest(speeds: Sequence[Speed]) -> Rest | None:
    """The speeds of one stack; None where the stack has one model only."""
    if len({speed.run.case.model.id for speed in speeds}) < 2:
        return None
    found, added = [], []
    for speed in speeds:
        others = [s for s in speeds if s.run.case.model.id != speed.run.case.model.id]
        rest = statistics.median(_rest_s(other) for other in others)
        added.append(rest)
        assert speed.timing is not None
        longer = replace(speed.timing, micro_step_s=speed.timing.micro_step_s + rest)
        found.append(replace(speed, timing=longer))
    return Rest(found, min(added), max(added))


def _rest_s(speed: Speed) -> float:
    """Measured less predicted seconds of a micro-step."""
    config = speed.run.case.config
    assert speed.timing is not None
    measured = config.effective_batch_size * config.sequence_length / speed.run.tokens_per_s
    return (measured - step_seconds(speed.timing, config)) / config.accumulation_steps()
