"""The areas of a picture: moments as columns, and in them the bands and blocks with their heights.

The scripts of the page do the same; see `columns.js`.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterator
from dataclasses import dataclass

from oomdoctor.records.inside.timeline import CATEGORIES, TimelineDevice

Outline = list[tuple[float, float]]


@dataclass(frozen=True, slots=True)
class Columns:
    """Each column shows one moment: of all that fall on it, the one with the most bytes.

    `edges` are places on the x axis, which counts events; there is one more than there are columns.
    `places` has each moment, and the end.
    """

    moments: list[int]
    edges: list[float]
    reserved: list[int]
    places: list[float]

    def place(self, moment: int) -> float:
        """Where a moment begins on the x axis."""
        return self.places[moment]


@dataclass(frozen=True, slots=True)
class Area:
    """A band of a category, or one block of it."""

    category: int
    block: int | None
    outline: Outline


def columns_of(device: TimelineDevice, most: int) -> Columns:
    """At most `most` columns of the whole history."""
    last = device.event[-1]
    end = last + max(1.0, last / 100)
    places = [*map(float, device.event), end]
    moments: list[int] = []
    edges: list[float] = []
    reserved: list[int] = []
    latest = -1
    for moment, place in enumerate(places[:-1]):
        column = int(place / end * most)
        if column == latest:
            if device.allocated[moment] > device.allocated[moments[-1]]:
                moments[-1] = moment
            reserved[-1] = max(reserved[-1], device.reserved[moment])
            continue
        moments.append(moment)
        edges.append(place)
        reserved.append(device.reserved[moment])
        latest = column
    return Columns(moments, [*edges, end], reserved, places)


def areas(device: TimelineDevice, columns: Columns, least_bytes: float) -> list[Area]:
    """The bands, and the blocks of at least `least_bytes`, from the bottom to the top."""
    found: list[Area] = []
    floor = [0] * len(columns.moments)
    for category in range(len(CATEGORIES)):
        lower = [f + r for f, r in zip(floor, _rest(device, columns, category), strict=True)]
        blocks = []
        for block in (n for n, c in enumerate(device.blocks.category) if c == category):
            first = bisect_left(columns.moments, device.blocks.born[block])
            after = bisect_left(columns.moments, device.blocks.died[block])
            size = device.blocks.size[block]
            if first < after and size >= least_bytes:
                upper = [below + size for below in lower[first:after]]
                outline = _outline(columns.edges[first : after + 1], lower[first:after], upper)
                blocks.append(Area(category, block, outline))
            for column in range(first, after):
                lower[column] += size
        if lower != floor:
            found.append(Area(category, None, _outline(columns.edges, floor, lower)))
            found += blocks
        floor = lower
    return found


def _rest(device: TimelineDevice, columns: Columns, category: int) -> list[int]:
    sums = device.rest.get(CATEGORIES[category])
    return [0 if sums is None else sums[moment] for moment in columns.moments]


def _outline(edges: list[float], lower: list[int], upper: list[int]) -> Outline:
    backwards = list(_steps(edges, lower))[::-1]
    return [*_steps(edges, upper), *backwards]


def _steps(edges: list[float], heights: list[int]) -> Iterator[tuple[float, float]]:
    """The corners of a line with steps, without those on a level line."""
    for at, height in enumerate(heights):
        if at == 0 or heights[at - 1] != height:
            yield edges[at], height
        if at + 1 == len(heights) or heights[at + 1] != height:
            yield edges[at + 1], height
