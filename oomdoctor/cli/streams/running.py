"""Carrying out a request: signals, progress, and the folder that it may never have used."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

from oomdoctor.errors import ExitCode, OomDoctorError

if TYPE_CHECKING:
    from oomdoctor.records.report import Report
    from oomdoctor.runs.events import Listener
    from oomdoctor.system.store.run_folders import RunFolder


class Work(Protocol):
    """A survey or a plan with its request bound."""

    def __call__(self, *, on_event: Listener, stop: Callable[[], ExitCode | None]) -> Report: ...


def carry_out(work: Work, folder: RunFolder, *, quiet: bool, resumed: bool = False) -> Report:
    """Do the work and give its report; `resumed` says that the folder was there before.

    Raises:
        OomDoctorError: the work could not start; a new folder without anything to show is gone.
    """
    from oomdoctor.cli.streams.progress import Progress
    from oomdoctor.cli.streams.signals import stop_on_signals

    try:
        with stop_on_signals() as stop, Progress(quiet=quiet) as progress:
            return work(on_event=progress.on_event, stop=stop)
    except OomDoctorError as error:
        if not resumed:
            _discard_unused(folder, error)
        raise


def _discard_unused(folder: RunFolder, error: OomDoctorError) -> None:
    """Remove the folder of a survey that could not start (no such model, no device).

    It has nothing to show or to go on with, and would stand in the way of `--resume latest`.
    """
    with suppress(OSError):
        if all(map(_says_nothing, folder.path.iterdir())):
            if str(folder.path) in (error.hint or ""):
                (folder.path / "request.json").unlink()  # no run any more, and the hint holds
            else:
                shutil.rmtree(folder.path, ignore_errors=True)


def _says_nothing(path: Path) -> bool:
    """Whether a file or folder of a run was there before a worker did anything."""
    if path.is_dir() and path.name.endswith("-inspect"):
        return all(inner.name == "job.json" for inner in path.iterdir())
    return path.name in ("request.json", "host.log", "lib")
