"""The lines that move at the bottom of a terminal. Used only where the cursor can move.

The cursor is never hidden, so that a terminal is usable whichever way the process ends. The line
says the rung, its phase, what is left and about how long that takes. It never wraps: where it is
too long, details go first, and then the end of the rung's label.
"""

from __future__ import annotations

import os
import sys
import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Literal

from oomdoctor.cli.streams.output import progress_text, write_patiently
from oomdoctor.render.text import columns_of, escape
from oomdoctor.render.words import counted

_LEAST_NAME = 20  # a label is cut to this before something else is left out
_CUT = ".."


@dataclass(frozen=True, slots=True)
class Status:
    """One moment of a survey or a plan.

    `doing` is before the name of the rung and `details` after it, the last the most important.
    `left` counts what has not ended, in units of `unit`; None if nothing is counted. `until` says
    what the estimated time leads to.
    """

    doing: str
    name: str
    details: tuple[str, ...]
    unit: Literal["config", "simulation"] = "config"
    left: int | None = None
    until: str = "left"


def line_of(status: Status, elapsed_s: float, remaining_s: float | None, width: int) -> str:
    """The status in at most `width` columns; without `remaining_s` there is no estimate."""
    left = status.left
    rest = "" if remaining_s is None else f"{_rounded(remaining_s)} {status.until}"
    long = (
        "" if left is None else f"{counted(left, status.unit)} left",
        _clock(elapsed_s),
        f"about {rest}" if rest else "",
    )
    short = (
        "" if left is None else f"{left:,} left",
        _brief_clock(elapsed_s),
        f"~{rest}" if rest else "",
    )
    versions = (
        (status.doing, status.details, long),
        (status.doing, status.details[-1:], long),
        (status.doing, status.details[-1:], short),
        ("", status.details[-1:], short),
    )
    for doing, details, facts in versions:
        line = _fitted(doing, status.name, (*details, *facts), width, _LEAST_NAME)
        if line is not None:
            return line
    line = _fitted("", status.name, short, width, 4)
    return _cut("  ".join(filter(None, short)), width) if line is None else line


def _fitted(doing: str, name: str, facts: tuple[str, ...], width: int, least: int) -> str | None:
    """The line with its name cut to the room there is; None if that is less than `least`."""
    before = f"{doing} " if doing and name else doing
    after = "".join(f"  {fact}" for fact in facts if fact)
    room = width - columns_of(before) - columns_of(after)
    if room < min(columns_of(name), least):
        return None
    return before + _cut(name, room) + after


def table_lines(table: Mapping[str, str], width: int) -> list[str]:
    """A line for each name with its text; where a terminal is too low for all, the last ones."""
    longest = max(map(columns_of, table), default=0)
    rows = [
        _cut(name + " " * (longest - columns_of(name)) + f"  {text}", width)
        for name, text in table.items()
    ]
    return rows[-max(1, (_size().lines or 24) - 2) :]


def _cut(text: str, room: int) -> str:
    """The start of a text, with two dots where its end is left out."""
    if columns_of(text) <= room:
        return text
    kept = text
    while kept and columns_of(kept) > room - len(_CUT):
        kept = kept[:-1]
    return (kept + _CUT)[: max(room, 0)]


def _clock(seconds: float) -> str:
    """`12 s`, `1 min 12 s`, `2 h 05 min`: whole seconds, because the line is redrawn."""
    whole = int(seconds)
    if whole < 60:
        return f"{whole} s"
    if whole < 3600:
        return f"{whole // 60} min {whole % 60:02d} s"
    return f"{whole // 3600} h {whole // 60 % 60:02d} min"


def _brief_clock(seconds: float) -> str:
    """`0:12`, `1:12`, `2:05:12`."""
    hours, rest = divmod(int(seconds), 3600)
    minutes = f"{hours}:{rest // 60:02d}" if hours else str(rest // 60)
    return f"{minutes}:{rest % 60:02d}"


def _rounded(seconds: float) -> str:
    """An estimate, no finer than it is good: `20 s`, `3 min`, `2 h`."""
    if seconds < 55:
        return f"{max(1, round(seconds / 10)) * 10} s"
    if seconds < 90 * 60:
        return f"{max(1, round(seconds / 60))} min"
    return f"{round(seconds / 3600):,} h"


REFRESHES_PER_S = 2.0
_FREE = 3  # columns for the cursor, and for the ^C that a terminal shows
_ERASE_LINE = "\r\x1b[2K"
_ERASE_BELOW = "\x1b[J"


class MovingLine:
    """Draws `text(width)` below whatever is printed above it, twice a second, until `stop`.

    Invariant: between two calls the cursor is at the end of the lines that `_drawn` holds.
    """

    def __init__(self, text: Callable[[int], str]) -> None:
        self._text = text
        self._lock = threading.RLock()
        self._over = threading.Event()
        self._drawn, self._width = "", 0
        self._rows: int | None = 0  # that were printed above; None if the width has changed
        self._redraws = threading.Thread(target=self._redraw, daemon=True)

    def start(self) -> None:
        """Draw the line from now on."""
        self.refresh()
        self._redraws.start()

    def stop(self, *, erase: bool = False) -> None:
        """Remove the line; with `erase` also what was printed above it, if that is all in sight."""
        self._over.set()
        if self._redraws.is_alive():
            self._redraws.join(1 / REFRESHES_PER_S)
        with self._lock:
            width = terminal_width()
            rows = self._rows if erase and self._width == width else None
            above = f"\x1b[{rows}A{_ERASE_BELOW}" if rows and rows < (_size().lines or 24) else ""
            write_patiently(self._erasure(width) + above)
            self._drawn = ""

    def refresh(self) -> None:
        """Draw the line now."""
        self._draw("")

    def print_above(self, text: str) -> None:
        """Print a line that stays, in full, unless `stop` erases it."""
        self._draw(progress_text(text) + "\n", columns_of(text))

    def _draw(self, above: str, size: int = 0) -> None:
        with self._lock:
            width = terminal_width()
            if self._rows and width != self._width:
                self._rows = None
            elif above and self._rows is not None:
                self._rows += max(1, -(-size // width))
            lines = "" if self._over.is_set() else self._text(width - _FREE)
            text = "\n".join(map(escape, lines.split("\n")))
            write_patiently(self._erasure(width) + above + text)
            self._drawn, self._width = text, width

    def _erasure(self, width: int) -> str:
        """What removes the lines; a terminal that became narrower has wrapped them."""
        lines = self._drawn.split("\n")
        rows = len(lines) - 1
        if width < self._width:
            rows += sum((max(columns_of(line), 1) - 1) // width for line in lines)
        return _ERASE_LINE + (f"\x1b[{rows}A{_ERASE_BELOW}" if rows else "")

    def _redraw(self) -> None:
        while not self._over.wait(1 / REFRESHES_PER_S):
            self.refresh()


def _size() -> os.terminal_size:
    """The size of the terminal behind stderr; zeros if it cannot be asked."""
    try:
        return os.get_terminal_size(sys.stderr.fileno())
    except (OSError, ValueError):
        return os.terminal_size((0, 0))


def terminal_width() -> int:
    """The columns of the terminal behind stderr now; `COLUMNS` overrides it."""
    from oomdoctor.system.environment import variable

    given = variable("COLUMNS") or ""
    if given.isdigit() and int(given):
        return int(given)
    return _size().columns or 80
