"""`oomdoctor show`: print a run from disk, in any format, whether it has ended or not."""

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

    A run that has not ended shows its rungs so far. Exit code 0 if there is something to show,
    whatever it says.
    """
    from oomdoctor.cli.requests.answer import chosen_format
    from oomdoctor.runs.unfinished import stored_report
    from oomdoctor.system.store import run_list

    chosen = chosen_format("show", options.answer)
    if options.list_:
        from oomdoctor.render.lists.listing import render_runs

        output.publish_listing(partial(render_runs, run_list.list_runs()), chosen == "json")
        return
    report = stored_report(run_list.open_run(options.run))
    publish_report(report, chosen, verbose=options.verbose, file=options.answer.output_file)
