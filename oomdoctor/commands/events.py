"""Events of a running survey or plan, for the progress display."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal

from oomdoctor.records.configuration.config import Rung
from oomdoctor.records.job.result import Attempt

EventKind = Literal[
    "note",
    "inspecting",
    "bounded",
    "counting",
    "trying",
    "phase",
    "tried",
    "skipped",
    "simulating",
    "simulated",
    "predicted",
    "searching",
    "waiting",
    "done",
]


@dataclass(frozen=True, slots=True)
class SurveyEvent:
    """One event: `index` of `total` rungs, counted from 1.

    A rung is `bounded` before it is simulated, if a formula says what it needs at least.

    Simulations run in parallel: `index` then counts the finished ones, and `attempts` are the
    results of one of them. A plan then is `searching` for changes that help. `left` counts the
    rungs of a survey that are still to be tried.
    """

    kind: EventKind
    rung: Rung | None = None
    micro_batch_size: int | None = None
    phase: str | None = None
    attempt: Attempt | None = None
    index: int = 0
    total: int = 0
    message: str | None = None
    attempts: tuple[Attempt, ...] = ()
    left: int | None = None


Listener = Callable[[SurveyEvent], None]


def starting(
    on_event: Listener, rungs: Sequence[Rung], total: int | None = None
) -> Callable[[int], None]:
    """Tells which of the rungs is simulated now; of a `total`, if there are more."""
    whole = len(rungs) if total is None else total
    return lambda number: on_event(SurveyEvent("simulating", rungs[number], total=whole))
