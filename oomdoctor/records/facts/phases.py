"""The phases of a training, in the order in which they happen: the rows of `data/phases.toml`."""

from __future__ import annotations

from dataclasses import dataclass

from oomdoctor.package_data import rows_of


@dataclass(frozen=True, slots=True)
class Phase:
    """A phase: when something happened, its name as a noun, and a short one for pictures.

    `of_step` is a part of a training step. `runs_forward` phases compute what a model gives out.
    The peaks of `measured` phases are measured one by one.
    """

    name: str
    when: str
    noun: str
    short: str | None = None
    of_step: bool = False
    runs_forward: bool = False
    measured: bool = False


PHASES = {phase.name: phase for phase in rows_of(Phase, "phases.toml")}
OF_A_STEP = frozenset(name for name, phase in PHASES.items() if phase.of_step)
FORWARD = frozenset(name for name, phase in PHASES.items() if phase.runs_forward)
MEASURED = tuple(name for name, phase in PHASES.items() if phase.measured)
STEPS = {"load": "load", "first": "first step", "steady": "later steps", "eval": "evaluation"}
"""The steps that are watched: the first one makes the optimizer states."""
