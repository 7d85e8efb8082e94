"""`oomdoctor show`: print a run from disk, in any format, whether it has ended or not."""

from __future__ import annotations

from typing import TYPE_CHECKING

from oomdoctor.cli.options.flatten import flatten
from oomdoctor.cli.options.verbs import ShowOptions
from oomdoctor.cli.streams import output
from oomdoctor.cli.streams.output import Started, publish_report

if TYPE_CHECKING:
    from oomdoctor.records.report.report import Report


def _gathered(name: str) -> Report | None:
    """The report of a folder of submitted probes; None if it is none."""
    from pathlib import Path

    from oomdoctor.records.report.triage import JOBS

    if not (Path(name) / JOBS).is_file():
        return None
    from oomdoctor.commands.triage import gathered

    return Started().report("show", "ok", 0, gathered=gathered(Path(name)))


def _case(options: ShowOptions) -> Report | None:
    """The report of a case, which is packed if that was asked; None if a run is meant.

    Raises:
        OomDoctorError: --zip was given for something else, or the case cannot be read or packed.
    """
    from oomdoctor.errors import usage_error
    from oomdoctor.system.store import cases
    from oomdoctor.units import format_bytes

    if not cases.is_case(options.run):
        if options.zip_ is not None:
            message = f"--zip packs a case, and {options.run} is none"
            raise usage_error("bad_option", message, "list the cases: oomdoctor runs --command run")
        return None
    report, path = cases.open_case(options.run)
    if options.zip_ is not None:
        if not path.is_dir():
            raise usage_error("bad_option", f"--zip: {path.name} is packed already")
        output.check_writable(options.zip_, "--zip")
        size = cases.pack(path, options.zip_)
        output.say(f"packed {path.name} into {options.zip_} ({format_bytes(size)})")
    return report


@flatten
def show(options: ShowOptions) -> None:
    """Print a stored run or case again, in any format, or draw it.

    A run that has not ended shows its configurations so far. A case is what `oomdoctor run` kept of
    a command that ran out of memory. Exit code 0 if there is something to show, whatever it says.

    Examples:
      oomdoctor show
      oomdoctor show --html report.html
      oomdoctor show 20261123-014500-train-a1b2 --zip case.zip
    Next: `oomdoctor probe --resume latest` continues an interrupted probe.
    """
    from oomdoctor.cli.option_reader import chosen_format
    from oomdoctor.cli.stored_request import drawn_files
    from oomdoctor.cli.streams.drawn import check_drawn, leaves_answer, write_drawn
    from oomdoctor.commands.ladder.unfinished import stored_report
    from oomdoctor.system.store.run_list import open_run, stored_runs

    chosen = chosen_format("show", options.answer)
    files = drawn_files(options)
    answers = leaves_answer(files.values(), chosen, options.answer.output_file)
    check_drawn(files)
    if options.list_:
        from oomdoctor.render.runs_page import listed_as_before, run_list

        runs = tuple(stored_runs())
        listing = run_list("show --list", runs, content=listed_as_before(runs))
        output.publish(listing.text, chosen)
        return
    report = _gathered(options.run) or _case(options) or stored_report(open_run(options.run))
    write_drawn(report, files, options.chart, options.rung)
    asked = chosen != "table" or options.answer.output_file is not None
    if answers and (asked or not files):
        publish_report(report, chosen, options.answer.output_file, verbose=options.verbose)
