"""The options of the verbs, each declared once, as typed and frozen dataclasses.

    ladder     what `probe` and `plan` share; probing and planning have what each has alone
    stored_runs  `show` and `runs`, which read runs from disk
    answer     the ranking, and the format and place of the answer
    explaining, running  one verb each; the options of the others stand beside their verb
    completion what a shell offers for a half-typed value
    flatten    makes the signature that typer reads from these dataclasses

Values stay text here. `cli.requests` parses them, so that one error lists every bad option, in
oomdoctor's own words, as text or as JSON.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import field
from typing import Any

import typer

# The sections of --help, in the order in which they are printed.
COMMON = "Common options"
CARDS = "Card options"
MODEL = "Model options"
RUNGS = "Rung options"
DATA = "Data options"
DEVICE = "Device options"
RUN = "Run options"
OUTPUT = "Output options"
ADVANCED = "Advanced options"
PANELS = (COMMON, CARDS, MODEL, RUNGS, DATA, DEVICE, RUN, OUTPUT, ADVANCED)


def option(
    flags: str,
    panel: str | None,
    help: str,
    completion: Callable[[str], list[str]] | None = None,
) -> Any:
    """An option of a verb: its names, or its name and the word for its value, as `--seq-len N`.

    `panel` is its section of --help, and `completion` offers its values.
    """
    names, _, metavar = (flags, "", "") if ", -" in flags else flags.partition(" ")
    return typer.Option(
        *names.split(", "),
        metavar=metavar or None,
        help=help,
        rich_help_panel=panel,
        autocompletion=completion,
    )


def declare(
    flags: str,
    panel: str | None,
    help: str,
    default: Any = None,
    completion: Callable[[str], list[str]] | None = None,
) -> Any:
    """An option as a field of a dataclass; `flatten` reads it."""
    return field(default=default, metadata={"option": option(flags, panel, help, completion)})


def switch(flags: str, panel: str | None, help: str) -> Any:
    """An option that is on or off, as a field of a dataclass."""
    return declare(flags, panel, help, default=False)
