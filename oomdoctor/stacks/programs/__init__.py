"""The programs whose files can be read and written: one row each, the general ones first."""

from __future__ import annotations

from collections.abc import Mapping

from oomdoctor.records.facts.choices import FormatName
from oomdoctor.stacks.names.row import Table, flat
from oomdoctor.stacks.programs import (
    accelerate,
    axolotl,
    deepspeed,
    llama_factory,
    ms_swift,
    nemo_rl,
    openrlhf,
    pytorch,
    torchtune,
    trainer,
    trl,
    unsloth,
    verl,
)
from oomdoctor.stacks.programs.program import Program

PROGRAMS: tuple[Program, ...] = (
    trainer.PROGRAM,
    trl.PROGRAM,
    accelerate.PROGRAM,
    deepspeed.PROGRAM,
    axolotl.PROGRAM,
    llama_factory.PROGRAM,
    ms_swift.PROGRAM,
    verl.PROGRAM,
    openrlhf.PROGRAM,
    nemo_rl.PROGRAM,
    torchtune.PROGRAM,
    unsloth.PROGRAM,
    pytorch.PROGRAM,
)
BY_NAME: dict[str, Program] = {program.name: program for program in PROGRAMS}


def table_of(path: str, name: FormatName) -> Table | None:
    """The table of a file; None for a program whose files of this kind are not read."""
    program = BY_NAME[name]
    return program.script if path.endswith(".py") else program.names


def recognize(values: Mapping[str, object]) -> FormatName | None:
    """The program of a file: the last one whose marks it has; None if no name tells."""
    names = {name for name, _ in flat(values)} | set(values)
    for program in reversed(PROGRAMS):
        if names & program.marks and not names & program.not_with:
            return program.name
    return None
