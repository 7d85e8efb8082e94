"""What a survey tells while it runs, for whoever shows progress."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

from oomdoctor.records.config import Rung
from oomdoctor.records.result import Attempt

EventKind = Literal[
    "note",
    "inspecting",
    "counting",
    "trying",
    "phase",
    "tried",
    "skipped",
    "simulating",
    "predicted",
    "waiting",
    "done",
]


@dataclass(frozen=True, slots=True)
class SurveyEvent:
    """Something a person may want to see: `index` of `total` rungs, counted from 1.

    Simulations run side by side: `index` then counts those that ended, and `attempts` are what one
    of them says.
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


Listener = Callable[[SurveyEvent], None]
