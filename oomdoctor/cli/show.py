"""`oomdoctor show`: print a finished or interrupted run from disk, in any format."""

from __future__ import annotations

from functools import partial

from oomdoctor.cli.options.flatten import flatten
from oomdoctor.cli.options.showing import ShowOptions
from oomdoctor.cli.streams import output
from oomdoctor.cli.streams.report import publish_report

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
