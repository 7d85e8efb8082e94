"""Passes a command's output through, byte for byte, and keeps a part of it.

Where our stream is a terminal the command gets a terminal too, so that it prints as it would
without us. Streams that are one file for us are one for the command, which keeps their order. A
second run of the command is not shown, only kept. The command's process group is in the foreground
whenever ours would be. So it gets Ctrl-C and Ctrl-Z itself and can read from the keyboard, as under
a shell.
"""

from __future__ import annotations

import fcntl
import os
import pty
import select
import signal
import termios
import threading
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress

_CHUNK = 1 << 16
_LINGER_S = 2.0  # for output of grandchildren that outlive the command
_HEAD_BYTES = 1 << 20  # settings are printed at the start
_TAIL_BYTES = 4 << 20  # and errors at the end
_TERMINAL = 0  # stdin
# Stops that the kernel sends to a background group that reads from or writes to its terminal.
_TOO_EARLY = (signal.SIGTTIN, signal.SIGTTOU)


class Passage:
    """Our stdout and stderr, and what the command writes to instead."""

    def __init__(self, tail: Tail, *, shown: bool = True) -> None:
        self._tail, self._shown = tail, shown
        self._lock = threading.Lock()
        self._terminals: list[tuple[int, int]] = []
        out, error = os.fstat(1), os.fstat(2)
        self.stdout, first = self._opened(1)
        same = (out.st_dev, out.st_ino, out.st_rdev) == (error.st_dev, error.st_ino, error.st_rdev)
        self.stderr = self.stdout
        passed_on = [(first, 1)]
        if not same:
            self.stderr, second = self._opened(2)
            passed_on.append((second, 2))
        self._threads = [
            threading.Thread(target=self._pass_on, args=ends, daemon=True) for ends in passed_on
        ]

    def start(self) -> None:
        """Begin to pass on, once the command has its ends."""
        for end in {self.stdout, self.stderr}:
            os.close(end)
        for thread in self._threads:
            thread.start()

    def finish(self) -> None:
        """Pass on what is left. A grandchild that keeps a stream open is not waited for long."""
        for thread in self._threads:
            thread.join(_LINGER_S)

    def resize(self) -> None:
        """Take over the size of our terminal."""
        for source, ours in self._terminals:
            _copy_size(ours, source)

    def _opened(self, ours: int) -> tuple[int, int]:
        """What the command writes to, and where we read it."""
        if not os.isatty(ours):
            read, write = os.pipe()
            return write, read
        read, write = pty.openpty()
        settings = termios.tcgetattr(write)
        settings[1] &= ~termios.OPOST  # our own terminal does what this would do
        termios.tcsetattr(write, termios.TCSANOW, settings)
        _copy_size(ours, write)
        self._terminals.append((read, ours))
        return write, read

    def _pass_on(self, source: int, ours: int) -> None:
        while True:
            try:
                chunk = os.read(source, _CHUNK)
            except OSError:  # a terminal whose other end is closed
                chunk = b""
            if not chunk:
                break
            with self._lock:
                self._tail.add(chunk)
            try:
                _write_all(ours, chunk if self._shown else b"")
            except BrokenPipeError:
                break  # our reader is gone: the command sees the same
            except OSError as error:  # a full disk need not end a training: only the output is lost
                self._shown = False
                line = f"\noomdoctor: the output is no longer shown: {error.strerror}\n"
                with suppress(OSError):
                    os.write(2, line.encode())
        with suppress(OSError):
            os.close(source)


def _write_all(stream: int, chunk: bytes) -> None:
    view = memoryview(chunk)
    while view:
        try:
            view = view[os.write(stream, view) :]
        except BlockingIOError:  # others, such as Node.js, share it and set it so
            select.select([], [stream], [])


def _copy_size(source: int, target: int) -> None:
    with suppress(OSError):
        size = fcntl.ioctl(source, termios.TIOCGWINSZ, b"\0" * 8)
        fcntl.ioctl(target, termios.TIOCSWINSZ, size)


class Tail:
    """The bytes so far; what is in the middle is dropped."""

    def __init__(self) -> None:
        self._head: list[bytes] = []
        self._head_bytes = 0
        self._tail: deque[bytes] = deque()
        self._tail_bytes = 0
        self._cut = False

    def add(self, chunk: bytes) -> None:
        """Add what was written."""
        if self._head_bytes < _HEAD_BYTES:
            self._head.append(chunk)
            self._head_bytes += len(chunk)
            return
        self._tail.append(chunk)
        self._tail_bytes += len(chunk)
        while self._tail_bytes - len(self._tail[0]) > _TAIL_BYTES:
            self._tail_bytes -= len(self._tail.popleft())
            self._cut = True

    def chunks(self) -> Iterator[bytes]:
        """What was kept, in order; a line break where something is left out."""
        yield from self._head
        if self._cut:
            yield b"\n"
        yield from self._tail

    def text(self) -> str:
        """What was kept, as text."""
        return b"".join(self.chunks()).decode("utf-8", "replace")


def last_line(output: str) -> str | None:
    """The line that says most about a failure: an error of ours, else the last line."""
    lines = [line.strip() for line in output.splitlines() if line.strip()]
    ours = next(
        (line.removeprefix("error: ") for line in lines if line.startswith("error: ")), None
    )
    return ours or (lines[-1] if lines else None)


class Terminal:
    """Our terminal and the process group of the command. Without a terminal, nothing happens."""

    def __init__(self, group: int) -> None:
        self._group = group

    def give(self) -> bool:
        """Put the command into the foreground if we are there; whether we were."""
        return self._hand_over(os.getpgrp(), self._group)

    def take_back(self) -> bool:
        """Take the foreground back from the command; whether it was there."""
        return self._hand_over(self._group, os.getpgrp())

    def resume(self) -> None:
        """Let the command go on, in the foreground if we are there: `fg` and `bg` of a shell."""
        self.give()
        with suppress(ProcessLookupError):
            os.killpg(self._group, signal.SIGCONT)

    def stopped(self, number: int, *, asked: bool) -> None:
        """The command was stopped by a signal: stop with it, until a shell lets us go on.

        `asked` says that the signal came to us and was passed on. Without a terminal, a command
        that others stopped is left to them.
        """
        if number in _TOO_EARLY and self.give():
            self.resume()
        elif asked:
            self.take_back()
            _stop(lambda: os.kill(os.getpid(), signal.SIGSTOP))
            self.resume()
        elif self.take_back() or (number in _TOO_EARLY and os.isatty(_TERMINAL)):
            # As the terminal does it: with all of our group, such as `| tee log`.
            _stop(lambda: os.killpg(os.getpgrp(), number))
            self.resume()

    @staticmethod
    def _hand_over(giver: int, taker: int) -> bool:
        try:
            if not os.isatty(_TERMINAL) or os.tcgetpgrp(_TERMINAL) != giver:
                return False
        except OSError:
            return False
        # The terminal would stop us for this from the background.
        before = signal.signal(signal.SIGTTOU, signal.SIG_IGN)
        with suppress(OSError):
            os.tcsetpgrp(_TERMINAL, taker)
        signal.signal(signal.SIGTTOU, before)
        return True


def _stop(act: Callable[[], None]) -> None:
    """Stop ourselves by a signal that we otherwise handle."""
    numbers = (signal.SIGTSTP, *_TOO_EARLY)
    before = {number: signal.signal(number, signal.SIG_DFL) for number in numbers}
    act()
    for number, handler in before.items():
        signal.signal(number, handler)


@contextmanager
def in_foreground(group: int) -> Iterator[Terminal]:
    """The terminal, with a process group in its foreground while the block runs."""
    terminal = Terminal(group)
    terminal.give()
    try:
        yield terminal
    finally:
        terminal.take_back()
