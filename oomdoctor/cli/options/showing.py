"""The options of `show`."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Annotated

import typer

from oomdoctor.cli.options import COMMON, completion, option
from oomdoctor.cli.options.answer import AnswerOptions, Verbose


@dataclass(frozen=True, slots=True)
class ShowOptions:
    """A command line of `show`."""

    run: Annotated[
        str,
        typer.Argument(
            metavar="RUN",
            help="Name or folder of a run.  [default: latest]",
            show_default=False,
            autocompletion=completion.runs,
        ),
    ] = "latest"
    list_: Annotated[bool, option("--list", panel=COMMON, help="List the runs on disk.")] = False
    answer: AnswerOptions = field(default_factory=AnswerOptions)
    verbose: Verbose = False
