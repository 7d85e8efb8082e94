"""Runs the command in its own process group, passes signals on, and waits for its end."""

from __future__ import annotations

import os
import select
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from types import FrameType

from oomdoctor.commands.run.process.streams import Passage, Tail, Terminal, in_foreground
from oomdoctor.errors import ExitCode, machine_error

# To the whole group, as Ctrl-C and `kill` of a job reach it; the others to the command alone.
_TO_END = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT)
_TO_COMMAND = (signal.SIGUSR1, signal.SIGUSR2)
_GRACE_S = 5.0
_OF_JOBS = (signal.SIGTSTP, signal.SIGCONT)


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
    def interrupted(self) -> bool:
        """Whether a signal asked us to stop, or Ctrl-C the command, which gets it itself."""
        return self.signal is not None or self.exit_code == ExitCode.INTERRUPTED


def run_command(
    command: tuple[str, ...],
    environment: Mapping[str, str],
    tail: Tail,
    *,
    shown: bool = True,
    limit_s: float | None = None,
) -> Ended:
    """Run it to its end, and return how it ended; what it prints is passed on if `shown`.

    After `limit_s` it is ended, as by SIGTERM.

    Raises:
        OomDoctorError: it cannot be started (exit 5).
    """
    sys.stdout.flush()
    passage = Passage(tail, shown=shown)
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
            text = f"cannot start {command[0]}: {error.strerror}"
            raise machine_error("command_failed", text) from None
        passage.start()
        with in_foreground(process.pid) as terminal, _ended_after(limit_s, process.pid):
            signals.pass_to(process.pid, terminal)
            status = _wait(process, terminal, signals)
        passage.finish()
    return Ended(status, signals.first)


@contextmanager
def _ended_after(limit_s: float | None, group: int) -> Iterator[None]:
    """End a process group that runs longer."""

    def end(number: int) -> None:
        with suppress(ProcessLookupError):
            os.killpg(group, number)

    ends = [(limit_s, signal.SIGTERM), (limit_s + _GRACE_S, signal.SIGKILL)] if limit_s else []
    timers = [threading.Timer(after_s, end, [number]) for after_s, number in ends]
    for timer in timers:
        timer.start()
    try:
        yield
    finally:
        for timer in timers:
            timer.cancel()


class _Signals:
    """The signals for us, which the command gets; those before its start once it runs."""

    def __init__(self, woken: int) -> None:
        self.woken = woken  # a pipe that has something to read after every signal
        self.first: int | None = None
        self.suspended = False  # SIGTSTP came to us, and the command has not stopped yet
        self._early: list[int] = []
        self._pid: int | None = None
        self._terminal: Terminal | None = None

    def pass_to(self, pid: int, terminal: Terminal) -> None:
        """Pass on to this process and its group from now on."""
        self._pid, self._terminal = pid, terminal
        for number in self._early:
            self._pass_on(number)

    def on_signal(self, number: int, frame: FrameType | None) -> None:
        """Handle a signal for us."""
        if number in _TO_END and self.first is None:
            self.first = number
        if self._pid is None:
            self._early.append(number)
        elif number == signal.SIGCONT and self._terminal is not None:
            self._terminal.resume()
        else:
            self._pass_on(number)

    def _pass_on(self, number: int) -> None:
        assert self._pid is not None
        self.suspended |= number == signal.SIGTSTP
        with suppress(ProcessLookupError):
            if number in (*_TO_END, signal.SIGTSTP):
                os.killpg(self._pid, number)
            else:
                os.kill(self._pid, number)


def _wait(process: subprocess.Popen[bytes], terminal: Terminal, signals: _Signals) -> int:
    """Wait for the end; if the command is suspended (Ctrl-Z), suspend ourselves with it.

    A blocking `waitpid` would not do: a signal just before it, or one that another thread gets,
    does not interrupt it, and would be passed on only when the command has ended.
    """
    while True:
        pid, status = os.waitpid(process.pid, os.WUNTRACED | os.WNOHANG)
        if pid == 0:
            select.select([signals.woken], [], [])
            os.read(signals.woken, 4096)
            continue
        if not os.WIFSTOPPED(status):
            process.returncode = os.waitstatus_to_exitcode(status)
            return process.returncode
        asked, signals.suspended = signals.suspended, False
        terminal.stopped(os.WSTOPSIG(status), asked=asked)


@contextmanager
def _signals(passage: Passage) -> Iterator[_Signals]:
    """Handle our signals while the block runs."""
    woken, wake = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
    signals = _Signals(woken)
    # What is ignored stays so for us and the command, as under `nohup`.
    before = {
        number: signal.signal(number, signals.on_signal)
        for number in _TO_END + _TO_COMMAND + _OF_JOBS
        if signal.getsignal(number) != signal.SIG_IGN
    }
    before[signal.SIGWINCH] = signal.signal(signal.SIGWINCH, lambda *_: passage.resize())
    before[signal.SIGCHLD] = signal.signal(signal.SIGCHLD, lambda *_: None)  # to be woken by it
    wake_before = signal.set_wakeup_fd(wake, warn_on_full_buffer=False)
    try:
        yield signals
    finally:
        signal.set_wakeup_fd(wake_before)
        for number, handler in before.items():
            signal.signal(number, handler)
        os.close(woken)
        os.close(wake)
