"""transformers' Trainer: the files and scripts of its examples, with its `TrainingArguments`."""

from __future__ import annotations

from oomdoctor.stacks.names.row import Table, table
from oomdoctor.stacks.names.scripts import LENGTH, OF_EXAMPLES, SCRIPT
from oomdoctor.stacks.programs.arguments import ARGUMENTS
from oomdoctor.stacks.programs.program import Program, names_beside, names_of_program
from oomdoctor.stacks.programs.trl import MODEL_CONFIG, SFT_CONFIG

# A Trainer's script has arguments for the model as well, mostly with the names that TRL uses.
_SCRIPT = Table(
    MODEL_CONFIG.rows,
    MODEL_CONFIG.neutral | SFT_CONFIG.neutral | table("transformers-examples", ()).neutral,
    MODEL_CONFIG.reasons,
    {"use_peft": False},
)
TRAINER = _SCRIPT | LENGTH | ARGUMENTS

PROGRAM = Program(
    "trainer",
    title="transformers TrainingArguments",
    package="transformers",
    version="5.23.0",
    file="train.py",
    brand="transformers",
    reads=(
        "`TrainingArguments` as YAML or JSON, with the arguments of a script beside them; or "
        "a folder that the Trainer saved into (`training_args.bin`, `adapter_config.json`)"
    ),
    writes="a script for transformers' `Trainer`",
    names=TRAINER,
    script=TRAINER | SCRIPT,
    marks=OF_EXAMPLES | names_of_program("trainer", "marks"),
    script_writer="oomdoctor.stacks.scripts.trainer",
    beside=names_beside("trainer"),
)
