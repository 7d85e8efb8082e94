"""The line that moves at the bottom of a terminal. Used only where the cursor can move.

The cursor is never hidden, so that a terminal is usable whichever way the process ends.
"""

from __future__ import annotations

import os
import sys
import threading
from collections.abc import Callable

from oomdoctor.cli.streams.output import progress_text, write_patiently
from oomdoctor.cli.streams.status import columns
from oomdoctor.render.text import escape

REFRESHES_PER_S = 2.0
_FREE = 3  # columns for the cursor, and for the ^C that a terminal shows
_ERASE_LINE = "\r\x1b[2K"
_ERASE_BELOW = "\x1b[J"


class MovingLine:
    """Draws `text(width)` below whatever is printed above it, twice a second, until `stop`.

    Invariant: between two calls the cursor is at the end of the line that `_drawn` holds.
    """

    def __init__(self, text: Callable[[int], str]) -> None:
        self._text = text
        self._lock = threading.RLock()
        self._over = threading.Event()
        self._drawn, self._width = "", 0
        self._redraws = threading.Thread(target=self._redraw, daemon=True)

    def start(self) -> None:
        """Draw the line from now on."""
        self.refresh()
        self._redraws.start()

    def stop(self) -> None:
        """Remove the line."""
        self._over.set()
        if self._redraws.is_alive():
            self._redraws.join(1 / REFRESHES_PER_S)
        with self._lock:
            write_patiently(self._erasure(terminal_width()))
            self._drawn = ""

    def refresh(self) -> None:
        """Draw the line now."""
        self._draw("")

    def print_above(self, text: str) -> None:
        """Print a line that stays, in full."""
        self._draw(progress_text(text) + "\n")

    def _draw(self, above: str) -> None:
        with self._lock:
            width = terminal_width()
            text = "" if self._over.is_set() else escape(self._text(width - _FREE))
            write_patiently(self._erasure(width) + above + text)
            self._drawn, self._width = text, width

    def _erasure(self, width: int) -> str:
        """What removes the line; a terminal that became narrower has wrapped it."""
        rows = (max(columns(self._drawn), 1) - 1) // width if width < self._width else 0
        return _ERASE_LINE + (f"\x1b[{rows}A{_ERASE_BELOW}" if rows else "")

    def _redraw(self) -> None:
        while not self._over.wait(1 / REFRESHES_PER_S):
            self.refresh()


def terminal_width() -> int:
    """The columns of the terminal behind stderr now; `COLUMNS` overrides it."""
    from oomdoctor.system.environment import variable

    given = variable("COLUMNS") or ""
    if given.isdigit() and int(given):
        return int(given)
    try:
        return os.get_terminal_size(sys.stderr.fileno()).columns or 80
    except (OSError, ValueError):
        return 80
