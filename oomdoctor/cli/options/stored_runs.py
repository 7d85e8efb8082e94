"""The options of `show`."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated

import typer

from oomdoctor.cli.options import COMMON, OUTPUT, RUN, completion, declare, switch
from oomdoctor.cli.options.answer import AnswerOptions, ListOptions, Verbose, either
from oomdoctor.render.charts import CHARTS


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
    list_: bool = switch(
        "--list", COMMON, "List the runs and cases on disk, as `oomdoctor runs` does."
    )
    zip_: Path | None = declare(
        "--zip FILE", OUTPUT, "Pack a case into a zip file, to send it to somebody."
    )
    html: Path | None = declare(
        "--html FILE",
        OUTPUT,
        "Also write the run as one page for a browser, with charts; - is stdout.",
    )
    png: Path | None = declare("--png FILE", OUTPUT, "Also write a chart of the run as PNG.")
    svg: Path | None = declare("--svg FILE", OUTPUT, "Also write a chart of the run as SVG.")
    chart: str = declare(
        "--chart CHART",
        OUTPUT,
        f"The chart of --png and --svg: {either(CHARTS)}.",
        default=CHARTS[0],
        completion=completion.one_of(CHARTS),
    )
    rung: str | None = declare(
        "--rung PLACE",
        OUTPUT,
        "The rung of the chart step, and the first of them on the page: its place in the "
        "table, its label or its key.  [default: the best]",
        completion=completion.places,
    )
    answer: AnswerOptions = field(default_factory=AnswerOptions)
    verbose: Verbose = False


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
