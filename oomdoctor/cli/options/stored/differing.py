"""The options of `diff`."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Annotated

import typer

from oomdoctor.cli.options import OUTPUT, completion, switch
from oomdoctor.cli.options.answer import AnswerOptions


@dataclass(frozen=True, slots=True)
class DiffOptions:
    """A command line of `diff`."""

    before: Annotated[
        str | None,
        typer.Argument(
            metavar="RUN_A",
            help="The earlier run: a name, a folder, a case, or a report.json.  "
            "[default: the run before RUN_B]",
            show_default=False,
            autocompletion=completion.runs_and_files,
        ),
    ] = None
    after: Annotated[
        str | None,
        typer.Argument(
            metavar="RUN_B",
            help="The later run.  [default: the latest of the same model and command]",
            show_default=False,
            autocompletion=completion.runs_and_files,
        ),
    ] = None
    answer: AnswerOptions = field(default_factory=AnswerOptions)
    verbose: bool = switch(
        "--verbose, -v", OUTPUT, "Show every rung, also those without a change that counts."
    )
