"""A sequence of events, split at its marks."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from oomdoctor.analysis.allocator.records import Mark

Event = tuple[int, int]
"""A block and its bytes: it is born if they are above zero, and dies if below."""


def stretches(marks: Iterable[Mark | tuple[int, str]]) -> Iterator[tuple[str | None, int | None]]:
    """The windows in order: name and number of events; None means until the end.

    The events before the first mark have no name.

    Raises:
        ValueError: the marks are not in order.
    """
    name: str | None = None
    start = 0
    for event, next_name in marks:
        if event < start:
            raise ValueError(f"the mark {next_name!r} at {event} is before {start}")
        yield name, event - start
        name, start = next_name, event
    yield name, None
