"""The terminal: the command's process group is in its foreground whenever ours would be.

So the command gets Ctrl-C and Ctrl-Z itself and can read from the keyboard, as under a shell.
"""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress

_TERMINAL = 0  # stdin
# Stops that the kernel sends to a background group that reads from or writes to its terminal.
_TOO_EARLY = (signal.SIGTTIN, signal.SIGTTOU)


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
        elif self.take_back() or (number in _TOO_EARLY and _has_terminal()):
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


def _has_terminal() -> bool:
    return os.isatty(_TERMINAL)


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
