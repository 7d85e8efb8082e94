"""`oomdoctor run`: run a training script, unchanged, on emulated GPUs, and say what it needs."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

import typer

from oomdoctor.cli.options.flatten import flatten
from oomdoctor.cli.options.running import RunOptions
from oomdoctor.cli.streams import output
from oomdoctor.errors import OomDoctorError

if TYPE_CHECKING:
    from oomdoctor.records.report import Report

EPILOG = """\b
Examples:
  oomdoctor run --emulate "RTX 4090" -- python train.py --config my.yaml
  oomdoctor run --emulate 8xH100 -- torchrun --nproc-per-node 8 train.py
Next: `oomdoctor plan MODEL --gpu "RTX 4090"` compares training methods.
"""


@flatten
def run(options: RunOptions) -> None:
    """Run a training script on a GPU that is not there.

    PyTorch's own CUDA code runs on emulated GPUs: memory is exact, out-of-memory errors are real,
    values and speeds mean nothing. The script is not changed, and its training stops once memory
    repeats. A summary on stderr says whether it fits, where the peak is, and what would help. The
    exit code is that of the command.
    """
    from oomdoctor.cli.requests.run import watch_request
    from oomdoctor.runs.watched.run import run_watched

    request = watch_request(options)
    start = _silent if options.quiet else output.say
    report = run_watched(request, on_start=start, on_crash=output.show_traceback)
    try:
        _tell(report, options)
    except OomDoctorError as error:  # the command's exit code is kept whatever happens to us
        output.say_error(error.message, error.hint)
    except Exception as error:  # noqa: BLE001
        output.show_traceback(error)
        message = f"the summary could not be shown: {type(error).__name__}: {error}"
        output.say_error(message, "run it again with OOMDOCTOR_DEBUG=1 and report the traceback")
    raise typer.Exit(report.exit_code)


def _tell(report: Report, options: RunOptions) -> None:
    if options.report is not None:
        output.write_file(options.report, _rendered(report, "json", output.screen(sys.stderr)))
    if not options.quiet:
        screen = output.screen(sys.stderr)
        page = _rendered(report, "table", screen, verbose=options.verbose)
        output.write_patiently("\n" + page)
    elif report.errors:
        output.say_error(report.errors[0].message, report.errors[0].hint)


def _silent(line: str) -> None:
    """Say nothing."""


def _rendered(report: Report, name: str, screen: output.Screen, *, verbose: bool = False) -> str:
    from oomdoctor.render import render_report

    return render_report(
        report,
        name,
        terminal=screen.terminal,
        width=screen.width,
        color=screen.color,
        verbose=verbose,
        signs=screen.signs,
    )
