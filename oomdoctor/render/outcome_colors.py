"""The colors of outcomes. The words always stand beside them, so color alone says nothing."""

from __future__ import annotations

import re

_TONES = (
    ("fits", "green"),
    ("borderline", "yellow"),
    ("yes", "green"),
    ("out of", "red"),
    ("crashed", "red"),
    ("failed", "red"),
    ("timed out", "red"),
    ("skipped", "yellow"),
    ("short by", "yellow"),
    ("missing", "yellow"),
    ("no", "yellow"),
)
_CODES = {"bold": 1, "red": 31, "green": 32, "yellow": 33}
# An outcome in a line of progress stands after the rung's name.
_OUTCOME = re.compile(
    r"(?<=: )(fits|ran out of (?:host )?memory|out of (?:host )?memory|crashed|failed|timed out"
    r"|skipped)"
)


def tone(cell: str) -> str:
    """The color of a cell that begins with an outcome; empty for other text."""
    return next((color for word, color in _TONES if cell.startswith(word)), "")


def painted(text: str, color: str) -> str:
    """The text between the escape sequences of a color; as it is without a color."""
    return f"\x1b[{_CODES[color]}m{text}\x1b[0m" if color and text else text


def painted_outcome(line: str) -> str:
    """A line of progress with its outcome in color."""
    return _OUTCOME.sub(
        lambda found: painted(found[0], tone(found[0].removeprefix("ran "))), line, 1
    )
