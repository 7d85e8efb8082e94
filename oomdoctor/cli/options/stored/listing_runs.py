"""The options of `runs`."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Annotated

from oomdoctor.cli.options import COMMON, RUN, completion, option
from oomdoctor.cli.options.answer import ListOptions


@dataclass(frozen=True, slots=True)
class RunsOptions:
    """A command line of `runs`."""

    model: Annotated[
        str | None,
        option(
            "--model",
            metavar="TEXT",
            panel=COMMON,
            help="Only runs whose model or command line has this text in it.",
            completion=completion.models,
        ),
    ] = None
    command: Annotated[
        str | None,
        option("--command", metavar="VERB", panel=COMMON, help="Only probe, plan or run."),
    ] = None
    since: Annotated[
        str | None,
        option(
            "--since",
            metavar="TIME",
            panel=COMMON,
            help="Only runs since then: today, yesterday, 12h, 3d, 2w or 2026-11-23.",
        ),
    ] = None
    limit: Annotated[
        str,
        option("--limit", metavar="N", panel=COMMON, help="At most so many runs; 0 for all."),
    ] = "20"
    prune: Annotated[
        bool,
        option(
            "--prune",
            panel=RUN,
            help="Delete the runs that are over a limit. --model, --command and --since say which "
            "runs are meant.",
        ),
    ] = False
    keep: Annotated[
        str | None,
        option("--keep", metavar="N", panel=RUN, help="With --prune: keep the latest N."),
    ] = None
    older_than: Annotated[
        str | None,
        option(
            "--older-than",
            metavar="AGE",
            panel=RUN,
            help="With --prune: delete those that are older, such as 30d.",
        ),
    ] = None
    max_size: Annotated[
        str | None,
        option(
            "--max-size",
            metavar="SIZE",
            panel=RUN,
            help="With --prune: delete the oldest until the rest take at most this, such as 5GiB.",
        ),
    ] = None
    dry_run: Annotated[
        bool, option("--dry-run", panel=RUN, help="With --prune: only list what would be deleted.")
    ] = False
    yes: Annotated[bool, option("--yes", "-y", panel=RUN, help="With --prune: do not ask.")] = False
    answer: ListOptions = field(default_factory=ListOptions)
