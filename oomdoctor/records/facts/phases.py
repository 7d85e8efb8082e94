"""The phases of a training: one row each, in the order in which they happen."""

from __future__ import annotations

from dataclasses import dataclass


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


PHASES = {
    phase.name: phase
    for phase in (
        Phase("init", "during startup", "startup"),
        Phase("load", "while loading the weights", "load", measured=True),
        Phase(
            "forward", "in the forward pass", "forward pass", "fwd",
            of_step=True, runs_forward=True, measured=True,
        ),
        Phase("loss", "while computing the loss", "loss", of_step=True, runs_forward=True),
        Phase(
            "backward", "in the backward pass", "backward pass", "bwd", of_step=True, measured=True
        ),
        Phase("clip", "while clipping the gradients", "gradient clipping", of_step=True),
        Phase(
            "optimizer", "in the optimizer step", "optimizer step", "opt",
            of_step=True, measured=True,
        ),
        Phase("eval", "during evaluation", "evaluation", runs_forward=True, measured=True),
        Phase("generate", "during generation", "generation", runs_forward=True),
        Phase("save", "while saving", "saving"),
        Phase("data", "while loading data", "data loading"),
    )
}  # fmt: skip
OF_A_STEP = frozenset(name for name, phase in PHASES.items() if phase.of_step)
FORWARD = frozenset(name for name, phase in PHASES.items() if phase.runs_forward)
MEASURED = tuple(name for name, phase in PHASES.items() if phase.measured)
STEPS = {"load": "load", "first": "first step", "steady": "later steps", "eval": "evaluation"}
"""The steps that are watched: the first one makes the optimizer states."""
