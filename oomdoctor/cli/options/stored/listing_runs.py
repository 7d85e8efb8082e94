"""The options of `runs`."""

from __future__ import annotations

from dataclasses import dataclass, field

from oomdoctor.cli.options import COMMON, RUN, completion, declare, switch
from oomdoctor.cli.options.answer import ListOptions


@dataclass(frozen=True, slots=True)
class RunsOptions:
    """A command line of `runs`."""

    model: str | None = declare(
        "--model TEXT",
        COMMON,
        "Only runs whose model or command line has this text in it.",
        completion=completion.models,
    )
    command: str | None = declare("--command VERB", COMMON, "Only probe, plan or run.")
    since: str | None = declare(
        "--since TIME", COMMON, "Only runs since then: today, yesterday, 12h, 3d, 2w or 2026-11-23."
    )
    limit: str = declare("--limit N", COMMON, "At most so many runs; 0 for all.", default="20")
    prune: bool = switch(
        "--prune",
        RUN,
        "Delete the runs that are over a limit. --model, --command and --since say which "
        "runs are meant.",
    )
    keep: str | None = declare("--keep N", RUN, "With --prune: keep the latest N.")
    older_than: str | None = declare(
        "--older-than AGE", RUN, "With --prune: delete those that are older, such as 30d."
    )
    max_size: str | None = declare(
        "--max-size SIZE",
        RUN,
        "With --prune: delete the oldest until the rest take at most this, such as 5GiB.",
    )
    dry_run: bool = switch("--dry-run", RUN, "With --prune: only list what would be deleted.")
    yes: bool = switch("--yes, -y", RUN, "With --prune: do not ask.")
    answer: ListOptions = field(default_factory=ListOptions)
