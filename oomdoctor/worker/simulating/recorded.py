"""The result of recording a training step: its tape and the costs of its operators."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from oomdoctor.analysis.simulator.tape import Region, Tape
from oomdoctor.records.costs import OpCost
from oomdoctor.worker.simulating.cuda.card import Card


@dataclass(frozen=True, slots=True)
class Cost:
    """The cost of an operator, with its unit and its phase."""

    region: Region | None
    window: int  # index into the tape's windows
    cost: OpCost


@dataclass(slots=True)
class Recorded:
    """The load and one step with one micro-step, at one micro-batch size.

    `taken` maps the block of each gradient to the event before which it became its parameter's
    gradient. `adding` is the cost of adding the gradients of another micro-step. The recording
    holds for the cards in `alike`, except for the size of the cuBLAS workspaces.
    `attention_operators` are those that ran. `managed_bytes` is the unified memory of paged states
    at full depth.
    """

    tape: Tape
    taken: dict[int, int]
    alike: set[Card]
    attention_operators: set[str]
    managed_bytes: int
    costs: list[Cost] = field(default_factory=list)
    adding: list[Cost] = field(default_factory=list)


def times(region: Region | None, depths: Mapping[int, tuple[int, int]]) -> int:
    """How often something that happens in a simulated unit happens at full depth."""
    if region is None or region[0] not in depths:
        return 1
    simulated, real = depths[region[0]]
    return 1 + real - simulated if region[1] == 1 else 1  # the second stands for the others
