"""The options of `show`."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated

import typer

from oomdoctor.cli.options import COMMON, OUTPUT, completion, option
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
    list_: Annotated[
        bool,
        option(
            "--list",
            panel=COMMON,
            help="List the runs and cases on disk, as `oomdoctor runs` does.",
        ),
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
    html: Annotated[
        Path | None,
        option(
            "--html",
            metavar="FILE",
            panel=OUTPUT,
            help="Also write the run as one page for a browser, with charts; - is stdout.",
        ),
    ] = None
    png: Annotated[
        Path | None,
        option("--png", metavar="FILE", panel=OUTPUT, help="Also write a chart of the run as PNG."),
    ] = None
    svg: Annotated[
        Path | None,
        option("--svg", metavar="FILE", panel=OUTPUT, help="Also write a chart of the run as SVG."),
    ] = None
    chart: Annotated[
        str,
        option(
            "--chart",
            metavar="CHART",
            panel=OUTPUT,
            completion=completion.one_of(CHARTS),
            help=f"The chart of --png and --svg: {either(CHARTS)}.",
        ),
    ] = CHARTS[0]
    rung: Annotated[
        str | None,
        option(
            "--rung",
            metavar="PLACE",
            panel=OUTPUT,
            completion=completion.places,
            help="The rung of the chart step, and the first of them on the page: its place in the "
            "table, its label or its key.  [default: the best]",
        ),
    ] = None
    answer: AnswerOptions = field(default_factory=AnswerOptions)
    verbose: Verbose = False
