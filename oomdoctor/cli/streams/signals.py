"""Ctrl-C and SIGTERM during a survey: the first asks it to stop, the second stops it at once.

Slurm sends SIGTERM and kills the job 30 seconds later, which is enough to print the results so far.
"""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from types import FrameType

from oomdoctor.errors import ExitCode

_CODES = {signal.SIGINT: ExitCode.INTERRUPTED, signal.SIGTERM: ExitCode.TERMINATED}


@contextmanager
def stop_on_signals() -> Iterator[Callable[[], ExitCode | None]]:
    """Yield a function that returns the exit code once the survey has to stop, None until then.

    A second signal raises KeyboardInterrupt, or SystemExit(143) for SIGTERM. An exception, so that
    running workers are still ended.
    """
    asked: list[ExitCode] = []

    def on_signal(number: int, frame: FrameType | None) -> None:
        code = _CODES[signal.Signals(number)]
        if asked:
            raise KeyboardInterrupt if code == ExitCode.INTERRUPTED else SystemExit(int(code))
        asked.append(code)
        # Not through sys.stderr: the signal may arrive in the middle of a write to it.
        with suppress(OSError):
            os.write(
                2, b"\nstopping: the results so far will be printed (once more to quit at once)\n"
            )

    before = {number: signal.signal(number, on_signal) for number in _CODES}
    try:
        yield lambda: asked[0] if asked else None
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
