"""Runs a survey or a plan with signals and progress, and removes a run folder that stayed empty.

The first Ctrl-C or SIGTERM asks it to stop, the second stops it at once. Slurm sends SIGTERM and
kills the job 30 seconds later, which is enough to print the results so far.
"""

from __future__ import annotations

import os
import shutil
import signal
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, Protocol, TypeVar

from oomdoctor.cli.streams.output import say, screen
from oomdoctor.errors import ExitCode, OomDoctorError

if TYPE_CHECKING:
    from oomdoctor.commands.events import Listener
    from oomdoctor.system.store.run_folders import RunFolder


_RESULTS = "the results so far will be printed"
# The signals so far, while a block of `stop_on_signals` runs. Blocks nest: a signal that comes
# while the command line is still being read stops the survey as soon as it starts.
_asked: list[ExitCode] | None = None
_CODES = {signal.SIGINT: ExitCode.INTERRUPTED, signal.SIGTERM: ExitCode.TERMINATED}


@contextmanager
def stop_on_signals(
    *, moving: bool = False, outcome: str = _RESULTS
) -> Iterator[Callable[[], ExitCode | None]]:
    """Yield a function that returns the exit code once the survey has to stop, None until then.

    A second signal raises KeyboardInterrupt, or SystemExit(143) for SIGTERM. An exception, so that
    running workers are still ended. With `moving` a line moves on stderr, which makes room for the
    answer to the signal. `outcome` says in that answer what a stop leads to.
    """
    answer = f"stopping: {outcome} (once more to quit at once)\n".encode()
    before_text = b"\r\x1b[2K" if moving else b"\n"
    global _asked
    outer, _asked = _asked, [] if _asked is None else _asked
    asked = _asked

    def on_signal(number: int, frame: FrameType | None) -> None:
        code = _CODES[signal.Signals(number)]
        if asked:
            raise KeyboardInterrupt if code == ExitCode.INTERRUPTED else SystemExit(int(code))
        asked.append(code)
        # Not through sys.stderr: the signal may arrive in the middle of a write to it.
        with suppress(OSError):
            os.write(2, before_text + answer)

    before = {number: signal.signal(number, on_signal) for number in _CODES}
    try:
        yield lambda: asked[0] if asked else None
    finally:
        _asked = outer
        for number, handler in before.items():
            signal.signal(number, handler)


Answer = TypeVar("Answer", covariant=True)


class Work(Protocol[Answer]):
    """A survey or a plan, with its request already bound."""

    def __call__(self, *, on_event: Listener, stop: Callable[[], ExitCode | None]) -> Answer: ...


def carry_out(
    work: Work[Answer], folder: RunFolder, *, quiet: bool, resumed: bool = False
) -> Answer:
    """Do the work and return its answer; `resumed` says that the run folder existed before.

    Raises:
        OomDoctorError: the work could not start; an empty new folder is removed.
    """
    from oomdoctor.cli.streams.progress import Progress

    try:
        moving = not quiet and screen(sys.stderr).moving
        signals = stop_on_signals(moving=moving)
        with folder.running(), signals as stop, Progress(quiet=quiet) as progress:
            return work(on_event=progress.on_event, stop=stop)
    except Exception as error:
        if isinstance(error, OomDoctorError) and not resumed:
            _discard_unused(folder, error)
        folder.note_problem(error)
        raise


def delete_old_runs(latest: str) -> None:
    """Delete what OOMDOCTOR_RUNS_LIMIT no longer keeps, after a run of the name `latest`."""
    from oomdoctor.commands.runs_choosing import keep_within_limit

    told = keep_within_limit(latest)
    if told is not None:
        say(told)


def _discard_unused(folder: RunFolder, error: OomDoctorError) -> None:
    """Remove the folder of a run that could not start, for example for lack of a device.

    It holds nothing to show or resume, and `--resume latest` would pick it.
    """
    with suppress(OSError):
        missing = error.code == "library_missing"
        if all(_says_nothing(path, missing) for path in folder.path.iterdir()):
            if str(folder.path) in (error.hint or ""):
                # No longer a run, but the hint names its files.
                (folder.path / "request.json").unlink()
            else:
                shutil.rmtree(folder.path, ignore_errors=True)


def _says_nothing(path: Path, library_missing: bool) -> bool:
    """Whether a file or folder of a run was written before any worker started.

    A worker that finds a library missing leaves a log and a reply; the error says the same.
    """
    if path.is_dir() and path.name.endswith("-inspect"):
        return library_missing or all(inner.name == "job.json" for inner in path.iterdir())
    return path.name in ("request.json", "running.lock", "host.log", "lib")


def make_environment(versions: tuple[str, ...], *, quiet: bool) -> None:
    """Make the environment with these library versions, unless it exists.

    Raises:
        OomDoctorError: it cannot be made (exit 2 or 5), or a signal came (exit 130 or 143).
    """
    from oomdoctor.system.interpreters.make import make_ready
    from oomdoctor.system.interpreters.pip import Helper, Stopped

    with stop_on_signals(outcome="no environment will be made") as stop:
        helper = Helper(say=(lambda _: None) if quiet else say, stopped=lambda: stop() is not None)
        try:
            make_ready(versions, helper)
        except Stopped:
            code = stop()
            assert code is not None  # the reason to stop
            raise OomDoctorError(
                "interrupted", "interrupted; no environment was made", None, code
            ) from None
