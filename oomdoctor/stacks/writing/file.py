"""A configuration file: where it is from, what it cannot hold, and its settings."""

from __future__ import annotations

import json
import textwrap

from oomdoctor.stacks.carried import with_carried
from oomdoctor.stacks.programs.program import Program
from oomdoctor.stacks.rung import StackRung
from oomdoctor.stacks.writing.lost import Lost, lost, settings_of
from oomdoctor.stacks.writing.yaml_text import scalar, yaml_text

_WIDTH = 98


def file_text(rung: StackRung, program: Program) -> str:
    """The text of a program's configuration file, with comments above its settings in YAML.

    Raises:
        OomDoctorError: the program cannot express the rung (exit 3).
    """
    settings = settings_of(rung.config, program.name)
    if program.complete is not None:
        settings = program.complete(rung, settings)
    settings = with_carried(settings, rung, program.name)
    if program.file.endswith(".json"):  # JSON has no comments
        return json.dumps(settings, indent=2) + "\n"
    missing = lost(rung.config, program.name, settings)
    notes = [f"{program.brand or program.name}: {rung.label}.", *rung.origin]
    if program.command is not None:
        notes.append(f"Start it with: {program.command(rung.config)}")
    notes += [f"Not in this file: {text}" for text in map(_said, missing)]
    head = "\n".join(
        line for text in notes for line in textwrap.wrap(text, _WIDTH, subsequent_indent="  ")
    )
    return f"{textwrap.indent(head, '# ')}\n{yaml_text(settings)}"


def _said(one: Lost) -> str:
    if one.reason is not None:
        return f"{one.key} = {scalar(one.value)} ({one.reason})"
    return f"{one.key} = {scalar(one.value)}; this program has {scalar(one.read)} instead"
