"""Bisection for the largest value of a setting that fits, guided by the peaks found so far."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Bracket:
    """The two values between which a rung stops fitting, with peaks in bytes, None if unknown.

    Invariant: `low` fits (0 counts as fitting), `high` does not. `poor` is the number of guesses
    in a row that left more than half of the bracket.
    """

    low: int
    low_bytes: int | None
    high: int
    high_bytes: int | None
    poor: int = 0

    def narrowed(self, value: int, fits: bool, peak_bytes: int | None) -> Bracket:
        """The bracket after `value` between its ends was tried."""
        left = self.high - value if fits else value - self.low
        poor = self.poor + 1 if 2 * left > self.high - self.low else 0
        if fits:
            return Bracket(value, peak_bytes, self.high, self.high_bytes, poor)
        return Bracket(self.low, self.low_bytes, value, peak_bytes, poor)


def next_value(
    bracket: Bracket, usable_bytes: int, values: Sequence[int], met: float | None = None
) -> int | None:
    """The next of the ascending `values` to try in the bracket; None if none is left.

    It is the next one above `met`, by default where the straight line through the two ends reaches
    the usable memory. Peaks grow faster than the value, so the line gets there too early. After two
    poor guesses it is the middle.
    """
    first = bisect_right(values, bracket.low)
    last = bisect_left(values, bracket.high) - 1
    if first > last:
        return None
    low, high = bracket.low_bytes, bracket.high_bytes
    if bracket.poor > 1 or low is None or high is None or high <= low:
        return values[(first + last) // 2]
    if met is None:
        met = bracket.low + (usable_bytes - low) / (high - low) * (bracket.high - bracket.low)
    return values[min(max(bisect_right(values, met), first), last)]
