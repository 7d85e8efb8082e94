"""A curve of limited length over any number of events that keeps the peaks."""

from __future__ import annotations

from oomdoctor.analysis.allocator.records import Point


class Curve:
    """At most `points` points, each for the same number of events.

    A point shows the event with the most allocated bytes, so the highest point is the peak.
    """

    def __init__(self, points: int) -> None:
        self._points = max(1, points)
        self._stride = 1
        self._kept: list[Point] = []

    def add(self, point: Point) -> None:
        """Add the next event; events must come in order, without gaps."""
        bucket = point.event // self._stride
        if bucket >= self._points:
            self._halve()
            bucket = point.event // self._stride
        if bucket == len(self._kept):
            self._kept.append(point)
        else:
            self._kept[bucket] = _higher(self._kept[bucket], point)

    def points(self) -> tuple[Point, ...]:
        return tuple(self._kept)

    def _halve(self) -> None:
        kept = self._kept
        self._stride *= 2
        self._kept = [
            kept[at] if at + 1 == len(kept) else _higher(kept[at], kept[at + 1])
            for at in range(0, len(kept), 2)
        ]


def _higher(first: Point, second: Point) -> Point:
    return second if second.allocated_bytes > first.allocated_bytes else first
