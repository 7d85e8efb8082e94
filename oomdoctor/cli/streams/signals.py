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
