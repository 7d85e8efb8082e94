"""The options of `export`."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import typer

from oomdoctor.cli.options import COMMON, completion, option
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
    to: Annotated[
        str | None,
        option(
            "--to",
            metavar="TARGET",
            panel=COMMON,
            completion=completion.targets,
            help=f"What to write: {', '.join(_TARGETS[:-1])} or {_TARGETS[-1]}.",
        ),
    ] = None
    run: Annotated[
        str,
        option(
            "--run",
            metavar="RUN",
            panel=COMMON,
            completion=completion.surveys,
            help="Name or folder of a run of probe or plan.",
        ),
    ] = "latest"
    from_: Annotated[
        list[str] | None,
        option(
            "--from",
            metavar="[PROGRAM:]FILE",
            panel=COMMON,
            help="Convert your own training file instead of a rung of a run. Repeatable.",
        ),
    ] = None
    output_file: Annotated[
        Path | None,
        option(
            "--output",
            metavar="FILE",
            panel=COMMON,
            help="Write to a file instead of stdout.",
        ),
    ] = None
    quiet: Annotated[
        bool, option("--quiet", "-q", panel=COMMON, help="Print nothing on stderr except errors.")
    ] = False
