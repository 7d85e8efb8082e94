"""The options of the verbs, each declared once, as typed and frozen dataclasses.

    surveys/   `probe` and `plan`: the ladder that they share, and what each has alone
    stored/    verbs on stored runs: `show`, `runs`, `export`, `diff`
    answer     the ranking, and the format and place of the answer
    explaining, triaging, watching, running, snapshotting   one verb each
    completion what a shell offers for a half-typed value
    flatten    makes the signature that typer reads from these dataclasses

Values stay text here. `cli.requests` parses them, so that one error lists every bad option, in
oomdoctor's own words, as text or as JSON.
"""

from __future__ import annotations

from collections.abc import Callable
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
    *names: str,
    help: str,
    panel: str | None = None,
    metavar: str | None = None,
    completion: Callable[[str], list[str]] | None = None,
) -> Any:
    """An option of a verb; `panel` is its section of --help, `completion` offers its values."""
    return typer.Option(
        *names, metavar=metavar, help=help, rich_help_panel=panel, autocompletion=completion
    )
