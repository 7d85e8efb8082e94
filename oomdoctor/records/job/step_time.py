"""Where the estimated time of an optimizer step goes."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

StepPart = Literal["products", "attention", "memory", "copies", "host", "communication"]
StepBound = Literal["compute", "bandwidth", "launch", "communication"]


@dataclass(frozen=True, slots=True)
class PartTime:
    """The seconds of a part in one optimizer step, all micro-steps included.

    "products" are matrix products and convolutions, "memory" kernels that only move bytes within
    the card, "copies" transfers between host and device. Each includes the ramp of its kernels.
    "host" is the time in which the card waits for the host to launch kernels or to update weights,
    "communication" the time in which it waits for links. `by_phase` adds up to `seconds`; what
    communication of micro-steps takes has the phase "micro_step", because it overlaps both passes.
    """

    part: StepPart
    seconds: float
    by_phase: Mapping[str, float]


@dataclass(frozen=True, slots=True)
class StepTime:
    """One optimizer step at the effective batch on one card; `parts` add up to `seconds`.

    `bound` takes the most of it: arithmetic, memory bandwidth, launches or communication.
    `launches` are the operators that the host launches in the step's `micro_steps` and its update.
    """

    seconds: float
    micro_steps: int
    parts: tuple[PartTime, ...]
    bound: StepBound
    launches: int
