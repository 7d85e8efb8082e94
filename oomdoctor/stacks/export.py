"""Writes a rung for a program: as its configuration file, or as a whole script."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from oomdoctor.stacks.rung import StackRung


def export(rung: StackRung, name: str) -> str:
    """The text of the rung for a program.

    Raises:
        OomDoctorError: the program cannot express the rung (exit 3).
    """
    from oomdoctor.stacks.programs import BY_NAME  # many tables, which `--help` does not need
    from oomdoctor.stacks.writing.file import file_text

    program = BY_NAME[name]
    if not program.file.endswith(".py"):
        return file_text(rung, program)
    writer = importlib.import_module(f"oomdoctor.stacks.scripts.{program.name}")
    return str(writer.render(rung))
