"""The options of the verbs, as typed and frozen dataclasses.

Names, sections and help of each option are a row in `data/options.toml`; type and default stand
here. An option whose words depend on other tables is declared in Python.

    verbs      verbs with a request, such as `probe`; the options of other verbs stand beside them
    answer     the ranking, and the format and place of the answer
    exclusions which of them exclude or need each other: the rows of `data/exclusions.toml`
    completion what a shell offers for a half-typed value
    flatten    makes the signature that typer reads from these dataclasses

Values stay text here. `cli.option_reader` parses them, so that one error lists every bad option, in
oomdoctor's own words, as text or as JSON.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import cache
from typing import Any

import typer

from oomdoctor.cli.options import completion
from oomdoctor.package_data import data_of

# The sections of --help, in the order in which they are printed.
COMMON, OUTPUT = "Common options", "Output options"
PANELS = (
    *(COMMON, "Card options", "Model options", "Configuration options", "Data options"),
    *("Device options", "Run options", OUTPUT, "Advanced options"),
)


def option(
    flags: str, panel: str | None, help: str, completion: Callable[[str], list[str]] | None = None
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


@cache
def option_rows() -> dict[str, dict[str, dict[str, Any]]]:
    """The rows of `data/options.toml`, by class and field."""
    rows: dict[str, dict[str, dict[str, Any]]] = data_of("options.toml")
    return rows


def option_named(table: str, name: str) -> Any:
    """The option or argument in a row of `data/options.toml`."""
    return option_of(option_rows()[table][name])


def option_of(row: Mapping[str, Any]) -> Any:
    """What a row says, as typer reads it."""
    words = row.get("completion")
    named = getattr(completion, words) if isinstance(words, str) else None
    offered = completion.one_of(words) if isinstance(words, list) else named
    if "option" in row:
        return option(row["option"], row.get("panel"), row["help"], offered)
    return typer.Argument(
        metavar=row["argument"], help=row["help"], show_default=False, autocompletion=offered
    )
