"""A configuration file: where it is from, what it cannot hold, and its settings."""

from __future__ import annotations

import textwrap
from collections.abc import Mapping

from oomdoctor.records.user_training import FormatName
from oomdoctor.stacks.rung import StackRung
from oomdoctor.stacks.writing.carried import with_carried
from oomdoctor.stacks.writing.lost import Lost, lost
from oomdoctor.stacks.writing.yaml_text import scalar, yaml_text

_WIDTH = 98


def yaml_file(
    rung: StackRung, program: FormatName, title: str, command: str, settings: Mapping[str, object]
) -> str:
    """The text of a YAML file with comments above the settings."""
    settings = with_carried(settings, rung, program)
    missing = lost(rung.config, program, settings)
    notes = [f"{title}: {rung.label}.", *rung.origin, f"Start it with: {command}"]
    notes += [f"Not in this file: {text}" for text in map(_said, missing)]
    head = "\n".join(
        line for text in notes for line in textwrap.wrap(text, _WIDTH, subsequent_indent="  ")
    )
    return f"{textwrap.indent(head, '# ')}\n{yaml_text(settings)}"


def _said(one: Lost) -> str:
    if one.reason is not None:
        return f"{one.key} = {scalar(one.value)} ({one.reason})"
    return f"{one.key} = {scalar(one.value)}; this program has {scalar(one.read)} instead"
