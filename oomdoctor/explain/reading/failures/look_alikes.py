"""Failures that are mistaken for out of memory, and all other exceptions by kind.

`data/look_alikes.toml` has them; `diagnosis.verdict` has the answer for each name.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import cache
from typing import Any

from oomdoctor.explain.reading.parse import any_hint
from oomdoctor.explain.reading.patterns import patterns
from oomdoctor.package_data import data_of


@dataclass(frozen=True, slots=True)
class LookAlike:
    """A kind of failure: the contract's name, and the words that identify it."""

    name: str
    words: str
    hints: str = ""

    @property
    def strong(self) -> bool:
        """Whether the words are enough, without the class of an exception."""
        return bool(self.hints)


DATA: dict[str, list[dict[str, Any]]] = data_of("look_alikes.toml")
LOOK_ALIKES = tuple(
    LookAlike(**{key: "".join(value) for key, value in row.items()}) for row in DATA["failures"]
)
QUOTED = "quoted"  # the words stand in source code, data, a command or documentation
SHUTDOWN = LookAlike(
    # The real message names the process; without it the words are quoted or printed at shutdown.
    "shutdown_artifact",
    r"DataLoader worker (?!\(pid\(?s?\)? ?\d).{0,20}is killed by signal: Killed",
    "illed",
)
# The class of any exception, and the hints of the rows that need no class.
MAY_FAIL = any_hint(
    (
        r"Error\b|Exception\b|Expired\b|OutOfResources|Failure\b",
        *(row.hints for row in LOOK_ALIKES if row.hints),
    )
)
_compiled = cache(re.compile)  # on first use: most logs have none of these
_RE = patterns("look_alikes")


@dataclass(frozen=True, slots=True)
class Found:
    """A look-alike in a line: its name, the class of the exception and its message."""

    name: str
    exception: str | None
    message: str
    strong: bool
    consequence: bool


def _tells(row: LookAlike, text: str) -> bool:
    return _compiled(row.words).search(text) is not None


def _unquoted(text: str) -> str:
    """Without the quotes at its ends that belong to what stands around it."""
    for quote in "'\"":
        whole = text.count(quote) == 2 and text[0] == text[-1] == quote
        text = text.strip(quote) if whole or text.count(quote) % 2 else text
    return text


def find_look_alike(text: str) -> Found | None:
    """The failure that a line (or a message of several lines) reports, or None."""
    if _tells(SHUTDOWN, text):
        return Found(SHUTDOWN.name, None, text.strip()[:400], True, False)
    first = text.split("\n", 1)[0]
    match = _RE["exception"].search(first.rstrip()) if len(first) < 20_000 else None
    exception = match[1] if match else None
    # The lines below may be another's, so they count only where the exception's own says nothing.
    parts = (first, text) if match else (text,)
    row = next((row for part in parts for row in LOOK_ALIKES if _tells(row, part)), None)
    if match is None and (row is None or not row.strong):
        return None
    message = _unquoted((match[0] if match else text).strip(" \t\r\n:`("))[:400]
    consequence = _RE["consequences"].search(first) is not None
    if row is None:
        return Found("other", exception, message, False, consequence)
    return Found(row.name, exception, message, row.strong, consequence)
