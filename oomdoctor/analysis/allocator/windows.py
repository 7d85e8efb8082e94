"""A sequence of events, split at its marks."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import starmap

from oomdoctor.analysis.allocator.records import Mark

Event = tuple[int, int]
"""A block and its bytes: it is born if they are above zero, and dies if below."""


def stretches(
    marks: Iterable[Mark | tuple[int, str]],
) -> Iterator[tuple[str | None, int | None, bool]]:
    """The windows in order: name, number of events, and whether the cache is emptied before.

    None as a number means until the end. The events before the first mark have no name.

    Raises:
        ValueError: the marks are not in order.
    """
    name: str | None = None
    start = 0
    empties = False
    for mark in starmap(Mark, marks):
        if mark.event < start:
            raise ValueError(f"the mark {mark.name!r} at {mark.event} is before {start}")
        yield name, mark.event - start, empties
        name, start, empties = mark.name, mark.event, mark.empties
    yield name, None, empties
