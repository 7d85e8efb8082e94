"""The options of the verbs, each declared once, as typed and frozen dataclasses.

    ladder     the model, its rungs and its data: shared by `probe` and `plan`
    answer     the ranking, and the format and place of the answer
    probing    the options of `probe`
    planning   the options of `plan`
    explaining the options of `explain`
    triaging   the options of `triage`
    showing    the options of `show`
    watching   the options of `watch`
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
