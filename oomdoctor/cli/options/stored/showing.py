"""The options of `show`."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated

import typer

from oomdoctor.cli.options import COMMON, OUTPUT, completion, declare, switch
from oomdoctor.cli.options.answer import AnswerOptions, Verbose, either
from oomdoctor.render.charts.names import CHARTS


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
