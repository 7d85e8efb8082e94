"""The options of `triage`."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Annotated

import typer

from oomdoctor.cli.options import COMMON, completion, declare, switch
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
    since: str | None = declare(
        "--since TIME",
        COMMON,
        "Ask sacct for the jobs that died since then: yesterday, 3d, 12h or 2026-11-23.",
    )
    user: list[str] | None = declare(
        "--user NAME", COMMON, "The jobs of this user, instead of your own. Repeatable."
    )
    all_users: bool = switch("--all-users", COMMON, "The jobs of all users.")
    by: str | None = declare(
        "--by KEY",
        COMMON,
        "Count by user, partition or cause, instead of a line for each job.",
        completion=completion.one_of(("user", "partition", "cause")),
    )
    answer: AnswerOptions = field(default_factory=AnswerOptions)
    verbose: Verbose = False
    quiet: Quiet = False
