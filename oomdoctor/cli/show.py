"""`oomdoctor show`: a finished or a broken-off run again, from disk, in any format."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from oomdoctor.cli.options import answer
from oomdoctor.cli.streams import output

if TYPE_CHECKING:
    from oomdoctor.records.report import Report

EPILOG = """\b
Examples:
  oomdoctor show
  oomdoctor show latest --format markdown --output report.md
Next: `oomdoctor probe --resume latest` goes on with a survey that was broken off.
"""


def show(
    run: Annotated[
        str, typer.Argument(metavar="[RUN]", help="Name or folder of a run.")
    ] = "latest",
    list_: Annotated[bool, typer.Option("--list", help="List the runs on disk.")] = False,
    format_: answer.Format = "table",
    json_: answer.Json = False,
    output_file: answer.Output = None,
    verbose: answer.Verbose = False,
) -> None:
    """Print a run again: the last one, or RUN.

    Exit code 0 when there is something to show, whatever the run found.
    """
    from oomdoctor.system.store import run_folders

    chosen = answer.chosen_format("show", format_, json_, output_file)
    if list_:
        from oomdoctor.render.lists.listing import render_runs

        output.publish_listing(partial(render_runs, run_folders.list_runs()), chosen == "json")
        return
    publish_report(
        run_folders.open_run(run).read_report(), chosen, verbose=verbose, file=output_file
    )


def publish_report(report: Report, chosen: str, *, verbose: bool, file: Path | None) -> None:
    """Print a report in the chosen format, and write it to a file as well."""
    from oomdoctor.render import render_report

    def render(name: str, screen: output.Screen) -> str:
        return render_report(
            report,
            name,
            terminal=screen.terminal,
            width=screen.width,
            color=screen.color,
            verbose=verbose,
            signs=screen.signs,
        )

    output.publish(render, chosen, file)
