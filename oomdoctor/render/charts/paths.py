"""Shorter paths for SVG: the same line with fewer letters, so that pages stay small."""

from __future__ import annotations

import re

_DATA = re.compile(r'(?<= d=")[MLz\d\s.-]+(?=")')
_COMMAND = re.compile(r"([MLz])\s*(-?[\d.]+)?\s*(-?[\d.]+)?")
_DIGITS = 1  # after the point: a tenth of a pixel

Point = tuple[str, str]


def with_short_paths(text: str) -> str:
    """The SVG with each path of straight lines in as few commands as possible."""
    return _DATA.sub(lambda found: _short(found[0]), text)


def _short(data: str) -> str:
    parts: list[str] = []
    x, y = "", ""  # where the pen is
    for command, across, down in _COMMAND.findall(data):
        if command == "z":
            parts.append("z")
            continue
        before, (x, y) = (x, y), (_rounded(across), _rounded(down))
        if command == "M":
            parts.append(f"M{x} {y}")
        elif (x, y) == before:
            continue
        elif y == before[1]:
            parts.append(f"H{x}")
        elif x == before[0]:
            parts.append(f"V{y}")
        else:
            parts.append(f"L{x} {y}")
    return "".join(parts)


def _rounded(number: str) -> str:
    text = f"{float(number):.{_DIGITS}f}"
    text = text.rstrip("0").rstrip(".")
    return "0" if text == "-0" else text
