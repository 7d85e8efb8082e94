"""Plain PyTorch: a script whose loop is the training step."""

from __future__ import annotations

from oomdoctor.stacks.names.row import Table
from oomdoctor.stacks.names.scripts import SCRIPT
from oomdoctor.stacks.programs.program import Program
from oomdoctor.stacks.programs.trainer import TRAINER
from oomdoctor.stacks.programs.trl import BESIDE_OF_TRL

PROGRAM = Program(
    "pytorch",
    title="plain PyTorch script",
    package="torch",
    version="2.13.0",
    file="train.py",
    writes="a script with a plain training loop: no Trainer, no accelerate",
    script=TRAINER | SCRIPT | Table((), defaults={"micro_batch_size": 1}, source="no more is said"),
    script_writer="oomdoctor.stacks.scripts.pytorch",
    beside=BESIDE_OF_TRL,
    whole_epochs=True,
)
