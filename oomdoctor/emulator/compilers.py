"""Runs compilers, all of which end if the build does: by an error, Ctrl-C or SIGTERM."""

from __future__ import annotations

import os
import signal
import subprocess
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import NoReturn

from oomdoctor.emulator.variables import compiling


class Compilers:
    """The compilers of one build. Their own temporary files are in `scratch`."""

    def __init__(self, scratch: Path) -> None:
        self._environment = compiling(scratch)
        self._running: set[subprocess.Popen[str]] = set()
        self._ended = False

    def run(
        self, command: list[str], timeout_s: float | None = None
    ) -> subprocess.CompletedProcess[str]:
        """Run one and return what it printed.

        Raises:
            OSError: it cannot be started.
            subprocess.TimeoutExpired: it took longer.
        """
        with subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env=self._environment,
            start_new_session=True,  # a compiler starts others, and all of them can be ended
        ) as process:
            self._running.add(process)
            try:
                if self._ended:
                    _end(process)
                output, errors = process.communicate(timeout=timeout_s)
            finally:
                _end(process)
                self._running.discard(process)
        return subprocess.CompletedProcess(command, process.returncode, output, errors)

    @contextmanager
    def ending(self) -> Iterator[None]:
        """End all of them if the block ends by an exception; SIGTERM is one inside of it."""
        with _sigterm_raises():
            try:
                yield
            except BaseException:
                self._ended = True
                for process in tuple(self._running):
                    _end(process)
                raise


def first_error(text: str) -> str:
    """The line of a compiler's messages that says what is wrong."""
    lines = text.strip().splitlines()
    return next((line for line in lines if "error" in line), lines[-1] if lines else "no message")


def _end(process: subprocess.Popen[str]) -> None:
    if process.poll() is None:
        with suppress(OSError):
            os.killpg(process.pid, signal.SIGKILL)


@contextmanager
def _sigterm_raises() -> Iterator[None]:
    usual = threading.current_thread() is threading.main_thread()
    usual = usual and signal.getsignal(signal.SIGTERM) is signal.SIG_DFL
    if usual:
        signal.signal(signal.SIGTERM, _raise)
    try:
        yield
    finally:
        if usual:
            signal.signal(signal.SIGTERM, signal.SIG_DFL)


def _raise(*_: object) -> NoReturn:
    raise SystemExit(128 + signal.SIGTERM)
