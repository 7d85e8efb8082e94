"""Restores the lines of a traceback that was wrapped at some width or joined into one line.

Terminals, mails and forums wrap long lines; loggers and search engines join them. This module knows
nothing about processes or about positions in the log.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

# A frame that was wrapped within its path, or before its line number or function.
_HALF_PATH = re.compile(r'File "[^"]*$')
_HALF_FRAME = re.compile(r'File "[^"]+",(?: line)?$|File "[^"]+", line \d+,(?: in)?$')

_HEAD = "Traceback (most recent call last)"
_NEXT_FRAME = re.compile(r'\s+(?=File ")')
_PLACE = re.compile(r'(File "[^"]*", line \d+(?:, in [\w.<>]+)?)\s+(.*)', re.DOTALL)
_CARETS = re.compile(r"\s+[~^]{2,}(?=\s|$)")
_EXCEPTION = re.compile(r"\s?(?:[a-z_]\w*\.)*[A-Z]\w*(?:Error|Exception)(?:: |$)")


def rejoined(texts: Sequence[str], broken: Sequence[bool]) -> list[str]:
    """The lines, with wrapped lines joined again.

    `broken` says which lines fill the width at which the text was wrapped: the next line continues
    such a line, unless it is indented like a frame or a quoted line.
    """
    found: list[str] = []
    full = False
    for text, fills in zip(texts, broken, strict=True):
        before = found[-1] if found else ""
        trimmed = before.rstrip()
        if full and not text.startswith(("  ", 'File "', "Traceback")):
            found[-1] = before + text
        elif 'File "' in before and 'File "' not in text and _HALF_PATH.search(trimmed):
            found[-1] = trimmed + text.strip()
        elif 'File "' in before and 'File "' not in text and _HALF_FRAME.search(trimmed):
            found[-1] = f"{trimmed} {text.strip()}"
        else:
            found.append(text)
        full = fills
    return found


def from_one_line(text: str) -> list[str]:
    """The places and quoted lines of a traceback on a single line; [] if there is none."""
    head, _, last = text.rpartition(_HEAD)
    pieces = _NEXT_FRAME.split(last)
    if len(pieces) < (2 if head or text.startswith(_HEAD) else 3):
        return []
    found: list[str] = []
    for piece in pieces:
        match = _PLACE.match(piece)
        if match is None:
            found.append(piece)
            continue
        code = _CARETS.sub("", match[2])
        end = _EXCEPTION.search(code)
        found += [match[1], f"    {code[: end.start()] if end else code}"]
    return found
