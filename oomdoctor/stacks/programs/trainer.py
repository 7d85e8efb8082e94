"""transformers' Trainer: the files and scripts of its examples, with its `TrainingArguments`."""

from __future__ import annotations

from oomdoctor.stacks.names.row import Table
from oomdoctor.stacks.names.tables import table
from oomdoctor.stacks.programs.arguments import ARGUMENTS, LENGTH, SCRIPT
from oomdoctor.stacks.programs.program import Program, facts
from oomdoctor.stacks.programs.trl import MODEL_CONFIG, SFT_CONFIG

# A Trainer's script has arguments for the model as well, mostly with the names that TRL uses.
_SCRIPT = Table(
    MODEL_CONFIG.rows,
    MODEL_CONFIG.neutral | SFT_CONFIG.neutral | table("transformers-examples").neutral,
    MODEL_CONFIG.reasons,
    {"use_peft": False},
)
TRAINER = _SCRIPT | LENGTH | ARGUMENTS

PROGRAM = Program(**facts("trainer"), names=TRAINER, script=TRAINER | SCRIPT)
