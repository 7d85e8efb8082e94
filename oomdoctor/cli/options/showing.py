"""The options of `show`."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated

import typer

from oomdoctor.cli.options import COMMON, OUTPUT, completion, option
from oomdoctor.cli.options.answer import AnswerOptions, Verbose


@dataclass(frozen=True, slots=True)
class ShowOptions:
    """A command line of `show`."""

    run: Annotated[
        str,
        typer.Argument(
            metavar="RUN|CASE",
            help="Name or folder of a run or a case, the zip file of a case, or a folder of "
            "scripts/slurm-probe.sh.  "
            "[default: latest run]",
            show_default=False,
            autocompletion=completion.runs,
        ),
    ] = "latest"
    list_: Annotated[
        bool, option("--list", panel=COMMON, help="List the runs and cases on disk.")
    ] = False
    zip_: Annotated[
        Path | None,
        option(
            "--zip",
            metavar="FILE",
            panel=OUTPUT,
            help="Pack a case into a zip file, to send it to somebody.",
        ),
    ] = None
    answer: AnswerOptions = field(default_factory=AnswerOptions)
    verbose: Verbose = False
