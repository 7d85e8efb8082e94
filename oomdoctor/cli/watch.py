"""`oomdoctor watch`: the memory of a running job, and when it will be full."""

from __future__ import annotations

import sys
import time
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

import typer

from oomdoctor.cli.options.flatten import flatten
from oomdoctor.cli.streams import output
from oomdoctor.errors import ExitCode, OomDoctorError, usage_error

if TYPE_CHECKING:
    from oomdoctor.commands.watch import Asked, Watcher
    from oomdoctor.records.report.report import Report

_INTERVAL_S = 1.0


@dataclass(frozen=True, slots=True)
class WatchOptions:
    """A command line of `watch`."""

    target: str | None = None
    gpu: int | None = None
    json_: bool = False
    once: bool = False
    verbose: bool = False


@flatten
def watch(options: WatchOptions) -> None:
    """Show the GPU memory of a running job.

    Shows memory by process, the trend, and the time until the GPU is full. It shows more if the job
    was started by `oomdoctor run` or has the callback of oomdoctor.monitor. On a terminal, the
    output updates every second until the job ends. Exit code 3 if there is nothing to watch, 5
    without a GPU.

    Examples:
      oomdoctor watch latest
      oomdoctor watch --gpu 0 --json
    Next: `oomdoctor snapshot memory_snapshot.pickle` names the line behind it.
    """
    from oomdoctor.commands.watch import Watcher

    watcher = Watcher(_asked(options))
    screen = output.screen(sys.stdout)
    if options.json_ or options.once or not screen.moving:
        chosen = "json" if options.json_ else "table"
        output.publish_report(_report(watcher), chosen, None, verbose=options.verbose)
        return
    _renew(watcher, verbose=options.verbose)


def _asked(options: WatchOptions) -> Asked:
    from oomdoctor.cli.option_reader import Reader
    from oomdoctor.commands.watch import LATEST, Asked

    reader = Reader("watch")
    reader.exclude(options)
    reader.check()
    text = options.target
    if options.gpu is not None:
        return Asked(f"GPU {options.gpu}", gpu=options.gpu)
    if text is None or text == LATEST:
        return Asked(LATEST)
    if text.isascii() and text.isdigit():
        return Asked(text, pid=int(text))
    if Path(text).is_file():
        return Asked(text, log=Path(text))
    raise usage_error(
        "bad_target", f"{text!r} is not a process id, `latest` or a file", "oomdoctor watch latest"
    )


def _report(watcher: Watcher) -> Report:
    started = output.Started()
    answer = watcher.look()
    return started.report("watch", "ok", ExitCode.OK, watch=answer)


def _renew(watcher: Watcher, *, verbose: bool) -> None:
    """Draw the page again and again at the same place, until what is watched has ended.

    Raises:
        OomDoctorError: there is nothing to watch at the start.
        typer.Exit: Ctrl-C ended it (exit 130).
    """
    report = _report(watcher)
    drawn = 0
    try:
        while True:
            drawn = _draw(report, drawn, verbose=verbose)
            trainings = report.watch.trainings if report.watch is not None else ()
            if trainings and all(training.ended for training in trainings):
                return
            time.sleep(_INTERVAL_S)
            try:
                report = _report(watcher)
            except OomDoctorError as error:  # it was there before
                output.say(f"the end: {error.message}")
                return
    except KeyboardInterrupt:
        raise typer.Exit(ExitCode.INTERRUPTED) from None


def _draw(report: Report, drawn: int, *, verbose: bool) -> int:
    """Draw the page over the one of `drawn` lines, and return the number of its lines."""
    import shutil

    screen = replace(output.screen(sys.stdout), terminal=True)
    page = output.rendered(report, "table", screen, verbose=verbose).splitlines()
    room = max(3, shutil.get_terminal_size().lines - 1)
    page = page if len(page) <= room else [*page[: room - 1], ".."]
    back = f"\x1b[{drawn}A\x1b[J" if drawn else ""
    output.print_answer(back + "\n".join(page))
    return len(page)
