"""`oomdoctor run`: run a training script, unchanged, and say what it needs or why it ran out."""

from __future__ import annotations

import sys
from pathlib import PurePath
from typing import TYPE_CHECKING

import typer

from oomdoctor.cli.options.flatten import flatten
from oomdoctor.cli.options.verbs import RunOptions
from oomdoctor.cli.streams import output
from oomdoctor.cli.streams.carry_out import delete_old_runs
from oomdoctor.errors import OomDoctorError

if TYPE_CHECKING:
    from oomdoctor.records.report.report import Report


@flatten
def run(options: RunOptions) -> None:
    """Run a training script, and explain why if memory runs out.

    The script is not changed. On the GPUs of this machine it runs to its end. If memory runs out,
    a folder keeps the evidence: a memory snapshot, the output and the diagnosis. With --emulate it
    runs on emulated GPUs, until memory repeats. Memory is exact, or the summary names what is not.
    Out-of-memory errors are real, but values and speeds mean nothing. The summary goes to stderr.
    The exit code is the command's, or 3 if it needs more than the card or --max-peak allows.

    Examples:
      oomdoctor run -- python train.py --config my.yaml
      oomdoctor run --emulate "RTX 4090" -- python train.py --config my.yaml
      oomdoctor run --emulate 8xH100 -- torchrun --nproc-per-node 8 train.py
    Next: `oomdoctor plan MODEL --gpu "RTX 4090"` compares training methods.
    """
    from oomdoctor.cli.run_request import watch_request
    from oomdoctor.commands.run.run_watched import run_watched

    request = watch_request(options)
    start = (lambda _: None) if options.quiet else output.say
    report = run_watched(request, start, output.show_traceback, _plain_page)
    try:
        _tell(report, options)
        if report.run_dir is not None:
            delete_old_runs(PurePath(report.run_dir).name)
    except OomDoctorError as error:  # the command's exit code is kept whatever happens to us
        output.say_error(error.message, error.hint)
    except Exception as error:  # noqa: BLE001
        output.show_traceback(error)
        message = f"the summary could not be shown: {type(error).__name__}: {error}"
        output.say_error(message, "run it again with OOMDOCTOR_DEBUG=1 and report the traceback")
    raise typer.Exit(report.exit_code)


def _tell(report: Report, options: RunOptions) -> None:
    if options.report is not None:
        from oomdoctor.commands.run.case import document_of

        output.write_file(options.report, document_of(report))
    if not options.quiet:
        screen = output.screen(sys.stderr)
        page = output.rendered(report, "table", screen, verbose=options.verbose)
        output.write_patiently("\n" + page)
    elif report.errors:
        output.say_error(report.errors[0].message, report.errors[0].hint)


def _plain_page(report: Report) -> str:
    """The page as it is kept in a case."""
    from oomdoctor.commands.run.case import WIDTH
    from oomdoctor.render import render_report
    from oomdoctor.render.formats import Style

    return render_report(report, "table", Style(width=WIDTH, verbose=True))
