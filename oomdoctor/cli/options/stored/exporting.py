"""The options of `export`."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import typer

from oomdoctor.cli.options import COMMON, completion, declare, switch
from oomdoctor.stacks.export import target_names

_TARGETS = target_names()


@dataclass(frozen=True, slots=True)
class ExportOptions:
    """A command line of `export`."""

    place: Annotated[
        str | None,
        typer.Argument(
            metavar="PLACE",
            help="Which rung: its place in the table (1 is the best), its label or its key.",
            show_default=False,
            autocompletion=completion.places,
        ),
    ] = None
    to: str | None = declare(
        "--to TARGET",
        COMMON,
        f"What to write: {', '.join(_TARGETS[:-1])} or {_TARGETS[-1]}.",
        completion=completion.targets,
    )
    run: str = declare(
        "--run RUN",
        COMMON,
        "Name or folder of a run of probe or plan.",
        default="latest",
        completion=completion.surveys,
    )
    from_: list[str] | None = declare(
        "--from [PROGRAM:]FILE",
        COMMON,
        "Convert your own training file instead of a rung of a run. Repeatable.",
    )
    output_file: Path | None = declare(
        "--output FILE", COMMON, "Write to a file instead of stdout."
    )
    quiet: bool = switch("--quiet, -q", COMMON, "Print nothing on stderr except errors.")
