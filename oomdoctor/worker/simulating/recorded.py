"""What recording a training step gives: its tape, and what its operators cost."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from oomdoctor.analysis.simulator.tape import Region, Tape
from oomdoctor.records.costs import OpCost
from oomdoctor.worker.simulating.cuda.kernels import Card


@dataclass(frozen=True, slots=True)
class Cost:
    """An operator's cost, with the unit and the phase it belongs to."""

    region: Region | None
    window: int  # index into the tape's windows
    cost: OpCost


@dataclass(slots=True)
class Recorded:
    """One step of one micro-step at a micro-batch size, the load before it included.

    `taken` has the blocks of gradients with the event before which each became one. `adding` is
    what it costs to add a further micro-step's gradients to them. It holds for the cards `alike`,
    but for the bytes of the cuBLAS workspaces. `attention_operators` are those that ran;
    `managed_bytes` is unified memory of paged states, at full depth.
    """

    tape: Tape
    taken: dict[int, int]
    alike: set[Card]
    attention_operators: set[str]
    managed_bytes: int
    costs: list[Cost] = field(default_factory=list)
    adding: list[Cost] = field(default_factory=list)


def times(region: Region | None, depths: Mapping[int, tuple[int, int]]) -> int:
    """How often what happens in a simulated unit happens at full depth."""
    if region is None or region[0] not in depths:
        return 1
    simulated, real = depths[region[0]]
    return 1 + real - simulated if region[1] == 1 else 1  # the second stands for those left out
