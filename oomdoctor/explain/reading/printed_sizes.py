"""Turns printed sizes into exact bytes."""

from __future__ import annotations

import re
from fractions import Fraction
from math import ceil, floor

# c10::CachingAllocator format_size: "512 bytes", "20.00 MiB"; XLA writes "86.89GiB".
# Some programs separate thousands by commas.
_FIGURE = r"(?<![\d.])(?:\d{1,3}(?:,\d{3}){1,6}|\d{1,20})(?:\.\d{1,20})?"
SIZE = rf"{_FIGURE}\s{{0,9}}(?:bytes?|B|[KMGT]i?B)\b"
# XLA's HumanReadableNumBytes for TPUs: "31.25G", a binary unit without its last letters.
SHORT_SIZE = r"(?<![\d.])\d{1,20}(?:\.\d{1,20})?[KMGT]\b"

_UNITS = {
    "byte": 1,
    "bytes": 1,
    "b": 1,
    **{letter: 1024**power for power, letter in enumerate("kmgt", 1)},
    **{f"{letter}ib": 1024**power for power, letter in enumerate("kmgt", 1)},
    **{f"{letter}b": 1000**power for power, letter in enumerate("kmgt", 1)},
}
_DECIMAL = frozenset({"kb", "mb", "gb", "tb"})
_PARTS = re.compile(r"(\d[\d,]*(?:\.\d+)?)\s*([A-Za-z]*)")
# A negative difference printed as unsigned is almost 2**64, and so is "no limit".
_UNDERFLOW = 2**62


def size_bytes(text: str, binary: bool = False) -> int | None:
    """The printed number times its unit, rounded to the nearest byte, without floats in between.

    GiB is 1024**3 and a bare number is bytes. GB is 1000**3; with `binary` it is 1024**3, for
    programs that divide by 1024 and write GB. None for an unknown unit and for an underflow such as
    17179869184.00 GiB, which means nothing.
    """
    parts = _parts(text, binary)
    if parts is None:
        return None
    number, factor = parts
    size = floor(Fraction(number) * factor + Fraction(1, 2))
    return None if size >= _UNDERFLOW else size


def rounding_bytes(text: str, binary: bool = False) -> int:
    """How far a printed size may be from the true one: 14.56 GiB is within 5.1 MiB.

    0 for a number without decimals and for what is not a size.
    """
    number, factor = _parts(text, binary) or ("", 0)
    _, point, decimals = number.partition(".")
    return ceil(Fraction(factor, 2 * 10 ** len(decimals))) if point else 0


def _parts(text: str, binary: bool) -> tuple[str, int] | None:
    """The number, and its unit in bytes; None for an unknown unit."""
    match = _PARTS.search(text)
    unit = (match[2].lower() or "bytes") if match else ""
    factor = _UNITS.get(unit[0] if binary and unit in _DECIMAL else unit)
    return None if match is None or factor is None else (match[1].replace(",", ""), factor)
