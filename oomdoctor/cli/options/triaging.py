"""The options of `triage`."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Annotated

import typer

from oomdoctor.cli.options import COMMON, completion, option
from oomdoctor.cli.options.answer import AnswerOptions, Quiet, Verbose


@dataclass(frozen=True, slots=True)
class TriageOptions:
    """A command line of `triage`."""

    files: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="FILE|JOB",
            help="Logs, or Slurm job ids. Without any, --since lists the jobs.",
            show_default=False,
        ),
    ] = None
    since: Annotated[
        str | None,
        option(
            "--since",
            metavar="TIME",
            panel=COMMON,
            help="Ask sacct for the jobs that died since then: yesterday, 3d, 12h or 2026-11-23.",
        ),
    ] = None
    user: Annotated[
        list[str] | None,
        option(
            "--user",
            metavar="NAME",
            panel=COMMON,
            help="The jobs of this user, instead of your own. Repeatable.",
        ),
    ] = None
    all_users: Annotated[
        bool, option("--all-users", panel=COMMON, help="The jobs of all users.")
    ] = False
    by: Annotated[
        str | None,
        option(
            "--by",
            metavar="KEY",
            panel=COMMON,
            completion=completion.one_of(("user", "partition", "cause")),
            help="Count by user, partition or cause, instead of a line for each job.",
        ),
    ] = None
    answer: AnswerOptions = field(default_factory=AnswerOptions)
    verbose: Verbose = False
    quiet: Quiet = False
