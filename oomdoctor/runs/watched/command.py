"""Runs the command in its own process group, passes signals on, and waits for its end.

In a terminal the command's group is in the foreground while it runs, as under a shell: it gets
Ctrl-C itself, and can read from the keyboard.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from types import FrameType

from oomdoctor.errors import ExitCode, OomDoctorError, machine_error
from oomdoctor.runs.watched.streams import Passage
from oomdoctor.runs.watched.tail import Tail

# To the whole group, as Ctrl-C and `kill` of a job reach it; the others to the command alone.
_TO_GROUP = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT)
_TO_COMMAND = (signal.SIGUSR1, signal.SIGUSR2)


@dataclass(frozen=True, slots=True)
class Ended:
    """How a command ended: its status, as `subprocess` has it, and the first signal for us."""

    status: int
    signal: int | None

    @property
    def exit_code(self) -> int:
        """The exit code as a shell gives it: 128 + N if signal N ended the command."""
        return self.status if self.status >= 0 else 128 - self.status

    @property
    def stopped_by(self) -> ExitCode | None:
        """The exit code of the signal that asked us to stop; None without one."""
        codes = {signal.SIGINT: ExitCode.INTERRUPTED, signal.SIGTERM: ExitCode.TERMINATED}
        return codes.get(signal.Signals(self.signal)) if self.signal else None


def run_command(command: tuple[str, ...], environment: Mapping[str, str], tail: Tail) -> Ended:
    """Run it to its end, and return how it ended.

    Raises:
        OomDoctorError: it cannot be started (exit 5).
    """
    sys.stdout.flush()
    passage = Passage(tail)
    with _signals(passage) as signals:
        try:
            process = subprocess.Popen(
                command,
                env=dict(environment),
                stdout=passage.stdout,
                stderr=passage.stderr,
                process_group=0,
            )
        except OSError as error:
            raise _cannot_start(command[0], error) from None
        passage.start()
        with _in_foreground(process.pid) as foreground:
            signals.pass_to(process.pid)
            status = _wait(process, foreground)
        passage.finish()
    return Ended(status, signals.first)


class _Signals:
    """The signals for us, which the command gets; those before its start once it runs."""

    def __init__(self) -> None:
        self.first: int | None = None
        self._early: list[int] = []
        self._pid: int | None = None

    def pass_to(self, pid: int) -> None:
        """Pass on to this process and its group from now on."""
        self._pid = pid
        for number in self._early:
            self._pass_on(number)

    def on_signal(self, number: int, frame: FrameType | None) -> None:
        """Handle a signal for us."""
        if number in _TO_GROUP and self.first is None:
            self.first = number
        if self._pid is None:
            self._early.append(number)
        else:
            self._pass_on(number)

    def _pass_on(self, number: int) -> None:
        assert self._pid is not None
        with suppress(ProcessLookupError):
            if number in _TO_GROUP:
                os.killpg(self._pid, number)
            else:
                os.kill(self._pid, number)


def _cannot_start(name: str, error: OSError) -> OomDoctorError:
    return machine_error("command_failed", f"cannot start {name}: {error.strerror}")


def _wait(process: subprocess.Popen[bytes], foreground: int | None) -> int:
    """Wait for the end; if the command is suspended (Ctrl-Z), suspend ourselves with it."""
    while True:
        _, status = os.waitpid(process.pid, os.WUNTRACED)
        if not os.WIFSTOPPED(status):
            process.returncode = os.waitstatus_to_exitcode(status)
            return process.returncode
        if foreground is None:
            continue
        if os.WSTOPSIG(status) in (signal.SIGTTIN, signal.SIGTTOU):
            _continue(foreground, process.pid)  # it was too early for its terminal
            continue
        _set_foreground(foreground, os.getpgrp())
        os.kill(os.getpid(), signal.SIGSTOP)
        _continue(foreground, process.pid)


def _continue(terminal: int, group: int) -> None:
    _set_foreground(terminal, group)
    with suppress(ProcessLookupError):
        os.killpg(group, signal.SIGCONT)


@contextmanager
def _signals(passage: Passage) -> Iterator[_Signals]:
    """Handle our signals while the block runs."""
    signals = _Signals()
    before = {
        number: signal.signal(number, signals.on_signal) for number in _TO_GROUP + _TO_COMMAND
    }
    before[signal.SIGWINCH] = signal.signal(signal.SIGWINCH, lambda *_: passage.resize())
    try:
        yield signals
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


@contextmanager
def _in_foreground(group: int) -> Iterator[int | None]:
    """Put a process group into the foreground of our terminal; yields the terminal, if any."""
    terminal = 0
    try:
        ours = os.isatty(terminal) and os.tcgetpgrp(terminal) == os.getpgrp()
    except OSError:
        ours = False
    if not ours:
        yield None
        return
    _set_foreground(terminal, group)
    try:
        yield terminal
    finally:
        _set_foreground(terminal, os.getpgrp())


def _set_foreground(terminal: int, group: int) -> None:
    # The terminal would stop us for writing to it from the background.
    before = signal.signal(signal.SIGTTOU, signal.SIG_IGN)
    with suppress(OSError):
        os.tcsetpgrp(terminal, group)
    signal.signal(signal.SIGTTOU, before)
