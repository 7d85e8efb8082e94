"""A memory snapshot as CSV: a row for each line of code that held memory at the peak.

Of two snapshots, a row for each line that holds more or less than before.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from oomdoctor.records.report import Report

_HELD = ("bytes", "count", "category", "confidence")
_PLACE = ("file", "line", "function")


def block_rows(report: Report) -> Iterator[list[Any]]:
    """The header, then the rows. Headings are the keys in JSON."""
    places = ("where", "library_where")
    yield ["device", *_HELD, *(f"{place}.{name}" for place in places for name in _PLACE)]
    held_by = [(device.index, device.peak or device.at_end) for device in report.devices]
    for index, lines in [(d.index, d) for d in report.differences] or held_by:
        for held in lines.blocks:
            found = [getattr(held, place) for place in places]
            yield [
                index,
                *(getattr(held, name) for name in _HELD),
                *(place and getattr(place, name) for place in found for name in _PLACE),
            ]
