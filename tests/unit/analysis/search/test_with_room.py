"""The micro-batch search where every try gives a peak."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from oomdoctor.analysis.search.micro_batch import MOST_WITH_ROOM, Sample, divisors, next_with_room

USABLE = 100


def search(sizes: tuple[int, ...], peak: Callable[[int], int | None]) -> dict[int, Sample]:
    """All tries of a search, for peaks by size; None is more than there is room for."""
    tried: dict[int, Sample] = {}
    while (size := next_with_room(sizes, tried, USABLE)) is not None:
        assert size not in tried and size in sizes
        found = peak(size)
        fits = found is not None and found <= USABLE
        tried[size] = Sample(size, "fits" if fits else "oom", found)
    return tried


def test_a_rung_whose_smallest_size_does_not_fit_is_tried_once() -> None:
    assert list(search((1, 2, 4), lambda size: 200)) == [1]


def test_the_largest_size_is_tried_where_the_others_also_hold_gradients() -> None:
    failed = {1: Sample(1, "oom", 110)}
    both = failed | {2: Sample(2, "fits", 95)}
    assert next_with_room((1, 2), failed, USABLE, spared_bytes=20) == 2
    assert next_with_room((1, 2), failed, USABLE, spared_bytes=5) is None
    assert next_with_room((1,), failed, USABLE, spared_bytes=20) is None
    assert next_with_room((1, 2), both, USABLE, spared_bytes=20) is None


def test_the_smallest_and_the_largest_size_settle_a_rung_with_room() -> None:
    assert list(search(divisors(64), lambda size: 20 + size)) == [1, 64]
    assert list(search((1,), lambda size: 20)) == [1]


@pytest.mark.parametrize(("each", "largest"), [(70, 1), (30, 2), (12, 6), (10, 8), (1.5, 48)])
def test_the_line_finds_the_largest_size(each: float, largest: int) -> None:
    tried = search(divisors(48), lambda size: round(20 + each * size))
    fitting = [size for size in tried if tried[size].outcome == "fits"]
    assert max(fitting) == largest
    assert len(tried) <= 4


def test_a_peak_that_bends_upwards_is_followed() -> None:
    tried = search(divisors(64), lambda size: max(20 + size, 8 * size))
    assert max(size for size in tried if tried[size].outcome == "fits") == 8
    assert len(tried) <= MOST_WITH_ROOM


def test_a_size_beyond_all_room_leaves_the_middle() -> None:
    tried = search(divisors(16), lambda size: 20 * size if size <= 8 else None)
    assert max(size for size in tried if tried[size].outcome == "fits") == 4
