"""Ctrl-C and SIGTERM during a survey: the first asks it to end, the second ends it.

Slurm ends jobs with SIGTERM and kills them half a minute later, time enough to print what is known.
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
    """Give a function that says whether, and with which exit code, the survey has to stop.

    A second signal raises: KeyboardInterrupt, or SystemExit(143) for SIGTERM, so that whoever holds
    a worker still ends it.
    """
    asked: list[ExitCode] = []

    def on_signal(number: int, frame: FrameType | None) -> None:
        code = _CODES[signal.Signals(number)]
        if asked:
            raise KeyboardInterrupt if code == ExitCode.INTERRUPTED else SystemExit(int(code))
        asked.append(code)
        # Not through sys.stderr: the signal may have come in the middle of a write to it.
        with suppress(OSError):
            os.write(2, b"\nstopping: what is known will be printed (once more to quit at once)\n")

    before = {number: signal.signal(number, on_signal) for number in _CODES}
    try:
        yield lambda: asked[0] if asked else None
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
