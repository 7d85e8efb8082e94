"""Which operators a part of the tape has: all whose peak it may have seen, and no other."""

from __future__ import annotations

import pytest

from oomdoctor.analysis.memory.curve import Stretch
from oomdoctor.worker.measuring.measure import peaks_of


def parts(*ends: int, first: int = 0) -> list[Stretch]:
    starts = [first, *ends[:-1]]
    return [
        Stretch(begin, end, "steady", "forward") for begin, end in zip(starts, ends, strict=True)
    ]


@pytest.mark.parametrize(
    ("ends", "peaks", "highest"),
    [
        ([2, 4, 6], [5, 7, 3], [5, 7, 3]),  # an operator a part
        ([1, 2, 3, 4, 6], [9, 5, 1, 7, 3], [9, 7, 3]),  # the highest counts
        ([3, 6], [5, 7], [5, 7, 7]),  # an operator in two parts
        ([6], [5], [5, 5, 5]),
        ([2, 2, 4, 6], [5, 8, 1, 1], [5, 8, 1]),  # one without a tensor comes after its part
        ([2], [5], [5, 0, 0]),  # nothing ran after it
        ([], [], [0, 0, 0]),
    ],
)
def test_a_part_has_the_peaks_of_its_operators(ends, peaks, highest) -> None:
    assert peaks_of(parts(2, 4, 6), ends, peaks) == highest


def test_what_was_there_before_belongs_to_no_operator() -> None:
    assert peaks_of(parts(12, 14, first=10), [11, 12, 14], [3, 4, 2]) == [4, 2]
