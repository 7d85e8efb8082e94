"""Plain PyTorch: a script whose loop is the training step."""

from __future__ import annotations

from oomdoctor.stacks.names.row import Table
from oomdoctor.stacks.programs.arguments import SCRIPT
from oomdoctor.stacks.programs.program import Program, facts
from oomdoctor.stacks.programs.trainer import TRAINER

PROGRAM = Program(
    **facts("pytorch"),
    script=TRAINER | SCRIPT | Table((), defaults={"micro_batch_size": 1}, source="no more is said"),
)
