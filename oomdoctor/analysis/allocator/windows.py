"""A sequence of events cut at its marks."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from oomdoctor.analysis.allocator.records import Mark

Event = tuple[int, int]
"""A block and its bytes: above zero it is born with so many, below zero it dies."""


def stretches(marks: Iterable[Mark | tuple[int, str]]) -> Iterator[tuple[str | None, int | None]]:
    """The windows in order: name and number of events; None is until the end.

    What comes before the first mark has no name.

    Raises:
        ValueError: a mark lies before the one in front of it.
    """
    name: str | None = None
    start = 0
    for event, next_name in marks:
        if event < start:
            raise ValueError(f"the mark {next_name!r} at {event} lies before {start}")
        yield name, event - start
        name, start = next_name, event
    yield name, None
