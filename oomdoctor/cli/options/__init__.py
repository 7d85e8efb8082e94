"""The options that commands share, declared once, by what they are about.

    ladder    the model, its training and its data: of `probe` and `plan`
    probing   what only `probe` has: the device, and how a survey goes on
    planning  what only `plan` has: the cards, and the questions
    answer    what is printed, where and how: of every command with an answer
    reader    reading what was typed into them, all faults in one go

Values arrive as text and are read here rather than by typer, so that every fault of a command line
is told in one go, in oomdoctor's own words, as text or as JSON.
"""

from __future__ import annotations

from typing import Any

import typer


def optional(name: str, metavar: str, help: str) -> Any:
    """An option whose default is None; its help says what that means."""
    return typer.Option(name, metavar=metavar, help=help, show_default=False)
