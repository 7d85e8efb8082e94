"""Sizes as messages print them, into exact bytes."""

from __future__ import annotations

import re
from fractions import Fraction
from math import floor

# c10::CachingAllocator format_size: "512 bytes", "20.00 MiB", "1.46 GiB".
SIZE = r"\d+(?:\.\d+)?\s*(?:bytes|B|KiB|MiB|GiB|TiB)\b"

_UNITS = {"bytes": 0, "b": 0, "kib": 1, "mib": 2, "gib": 3, "tib": 4}
_PARTS = re.compile(r"(\d+(?:\.\d+)?)\s*([A-Za-z]+)")
# An unsigned difference that went below zero is printed as almost 2**64, and so is "no limit".
_UNDERFLOW = 2**62


def size_bytes(text: str) -> int | None:
    """The printed figure times its unit, rounded to the nearest byte; no float in between.

    None for an underflow such as 17179869184.00 GiB, which tells nothing.
    """
    match = _PARTS.search(text)
    if match is None:
        return None
    exact = Fraction(match[1]) * 1024 ** _UNITS[match[2].lower()]
    size = floor(exact + Fraction(1, 2))
    return None if size >= _UNDERFLOW else size
