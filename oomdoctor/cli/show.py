"""`oomdoctor show`: print a finished or interrupted run from disk, in any format."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from oomdoctor.cli.options.flatten import flatten
from oomdoctor.cli.options.showing import ShowOptions
from oomdoctor.cli.streams import output

if TYPE_CHECKING:
    from oomdoctor.records.report import Report

EPILOG = """\b
Examples:
  oomdoctor show
  oomdoctor show latest --format markdown --output report.md
Next: `oomdoctor probe --resume latest` continues an interrupted probe.
"""


@flatten
def show(options: ShowOptions) -> None:
    """Print a stored run again, in any format.

    Exit code 0 if there is a report to show, whatever it says.
    """
    from oomdoctor.cli.requests.answer import chosen_format
    from oomdoctor.system.store import run_folders

    chosen = chosen_format("show", options.answer)
    if options.list_:
        from oomdoctor.render.lists.listing import render_runs

        output.publish_listing(partial(render_runs, run_folders.list_runs()), chosen == "json")
        return
    report = run_folders.open_run(options.run).read_report()
    publish_report(report, chosen, verbose=options.verbose, file=options.answer.output_file)


def publish_report(report: Report, chosen: str, *, verbose: bool, file: Path | None) -> None:
    """Print a report in the chosen format, and also write it to `file` if there is one."""
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
