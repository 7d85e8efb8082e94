"""What `probe --calibrate` measures on a device: single operators, and steps of small models.

These are raw times. `analysis.speed.calibrated` compares them with today's estimates.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from oomdoctor.records.job.costs import OpCost
from oomdoctor.records.job.measurement import Load

Clock = Literal["device", "wall", "cpu"]


@dataclass(frozen=True, slots=True)
class MeasuredKernel:
    """An operator that ran alone: the median of its times in seconds, and their relative spread.

    On a GPU the time is that of the device. What an operator on one element takes is included.
    """

    cost: OpCost
    seconds: float
    spread: float | None


@dataclass(frozen=True, slots=True)
class CountedOperator:
    """An operator and how often a step calls it."""

    cost: OpCost
    count: int


@dataclass(frozen=True, slots=True)
class MeasuredStep:
    """An optimizer step of a small model, of one micro-batch: its operators, and its seconds."""

    model: str
    operators: tuple[CountedOperator, ...]
    seconds: float
    spread: float | None


@dataclass(frozen=True, slots=True)
class DeviceTimes:
    """The times of a device.

    `launch_s` are the seconds of an operator on one element, one after the other. `host_step` is a
    step of a model so small that the host limits it. `steps` are of models that the device limits;
    no factor is taken from them, so they show how exact calibrated estimates are. `clock` is
    "device" (events), "wall" or "cpu" (CPU time of the only thread).
    """

    kernels: tuple[MeasuredKernel, ...]
    launch_s: float
    host_step: MeasuredStep
    steps: tuple[MeasuredStep, ...]
    clock: Clock
    rounds: int
    elapsed_s: float
    load: Load | None
