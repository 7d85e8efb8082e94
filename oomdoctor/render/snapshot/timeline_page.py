"""The page: one file without a network, whose scripts are the only ones that a browser will run.

No text of the snapshot is in the HTML, except its name in the title, escaped. All others are in the
packed data, and the scripts show them as text. The policy in the head allows no request.

`packed` makes a timeline one line of text: columns of differences, deflated, base64. The bytes are
a JSON document with the length of its text before it, and then the columns. `columns` in the
document says where each column is, how many numbers it has and of which type. The first number is
the value, the others are differences, so that most columns are nearly all zeros.
"""

from __future__ import annotations

import json
import re
import struct
import sys
import zlib
from array import array
from base64 import b64encode
from collections.abc import Iterable, Mapping
from dataclasses import fields
from html import escape
from itertools import pairwise
from string import Template

from oomdoctor.records.facts.categories import TABLE
from oomdoctor.records.job.measurement import CATEGORY_WORDS, BlockCategory
from oomdoctor.records.report.timeline import (
    CATEGORIES,
    CONFIDENCES,
    PHASES,
    Timeline,
    TimelineDevice,
)
from oomdoctor.render.text import hash_of

_ALIGNED = 8
_TYPES = (("b", 2**7), ("h", 2**15), ("i", 2**31))
LIGHT: dict[BlockCategory, tuple[int, int, int]] = {name: TABLE[name].hsl for name in CATEGORIES}
"""Hue, saturation and lightness of each category on white."""


class _Columns:
    def __init__(self) -> None:
        self.index: dict[str, tuple[str, int, int]] = {}
        self.data = bytearray()

    def add(self, name: str, values: Iterable[int]) -> None:
        """Add a column."""
        numbers = array("q", values)
        steps = array("q", numbers[:1])
        steps.extend(after - before for before, after in pairwise(numbers))
        most = max(map(abs, steps), default=0)
        # A double holds each whole number up to 2**53.
        kind = next((kind for kind, limit in _TYPES if most < limit), "d")
        column = array(kind, steps)
        if sys.byteorder == "big":
            column.byteswap()
        self.data += bytes(-len(self.data) % _ALIGNED)
        self.index[name] = (kind, len(self.data), len(column))
        self.data += column.tobytes()


def packed(timeline: Timeline) -> str:
    """The text; it has letters, digits, `+`, `/` and `=` only."""
    columns = _Columns()
    devices = [_device(device, columns) for device in timeline.devices]
    columns.add("stack.length", (len(stack.frames) for stack in timeline.stacks))
    columns.add("stack.frame", (frame for stack in timeline.stacks for frame in stack.frames))
    columns.add("stack.where", (stack.where for stack in timeline.stacks))
    texts = {text: 0 for frame in timeline.frames for text in (frame.file, frame.function)}
    numbers = {text: number for number, text in enumerate(texts)}
    columns.add("frame.file", (numbers[frame.file] for frame in timeline.frames))
    columns.add("frame.line", (frame.line for frame in timeline.frames))
    columns.add("frame.function", (numbers[frame.function] for frame in timeline.frames))
    document = {
        "source": timeline.source,
        "written_by": timeline.written_by,
        "categories": CATEGORIES,
        "words": [CATEGORY_WORDS[name] for name in CATEGORIES],
        "colors": [LIGHT[name] for name in CATEGORIES],
        "confidences": CONFIDENCES,
        "phases": PHASES,
        "texts": list(texts),
        "devices": devices,
        "columns": columns.index,
    }
    text = json.dumps(document, separators=(",", ":")).encode()
    head = struct.pack("<I", len(text)) + text
    head += bytes(-len(head) % _ALIGNED)
    return b64encode(zlib.compress(head + columns.data, 6)).decode("ascii")


def _device(device: TimelineDevice, columns: _Columns) -> dict[str, object]:
    """Adds the columns of a device, and returns the rest of what it has."""
    at = device.index
    for name in ("event", "at_us", "allocated", "reserved", "phase"):
        columns.add(f"{at}.{name}", getattr(device, name))
    for field in fields(device.blocks):
        columns.add(f"{at}.block.{field.name}", getattr(device.blocks, field.name))
    for category, sums in device.rest.items():
        columns.add(f"{at}.rest.{category}", sums)
    columns.add(f"{at}.step.first", (first for first, _ in device.steps))
    columns.add(f"{at}.step.after", (after for _, after in device.steps))
    return {
        "index": at,
        "events": device.events,
        "peak": device.peak,
        "traced": device.traced,
        "failures": [
            [failure.moment, failure.requested_bytes, failure.free_bytes, failure.stack]
            for failure in device.failures
        ],
        "limit": device.limit_bytes,
        "truncated": device.truncated,
        "stacks": device.has_stacks,
        "moments": device.most_moments,
        "unseen": device.unseen_blocks,
        "small": device.small_blocks,
    }


def rgb(hsl: tuple[int, int, int]) -> tuple[float, float, float]:
    """A color as red, green and blue from 0 to 1."""
    import colorsys

    hue, saturation, lightness = hsl
    return colorsys.hls_to_rgb(hue / 360, lightness / 100, saturation / 100)


STYLES = ("uPlot.min.css", "page.css")
SCRIPTS = (
    "uPlot.iife.min.js",
    "data.js",
    "columns.js",
    "paint.js",
    "panel.js",
    "breakdown.js",
    "moves.js",
    "page.js",
)
PARTS = ("page.html", "uPlot.LICENSE", *STYLES, *SCRIPTS)
"""The files that the page is made of."""


_COMMENTS = re.compile(r"^(?: *//.*\n| */\*\*(?s:.*?)\*/\n| +)", re.MULTILINE)
"""Lines of comments and indents, which are for those who read the files."""


def page(timeline: Timeline, parts: Mapping[str, str]) -> str:
    """The HTML; `parts` are the texts of the files `PARTS`."""
    style = "\n".join(parts[name] for name in STYLES)
    script = _COMMENTS.sub("", "\n".join(parts[name] for name in SCRIPTS))
    policy = f"default-src 'none'; script-src {hash_of(script)}; style-src {hash_of(style)}"
    return Template(parts["page.html"]).substitute(
        policy=policy,
        license=parts["uPlot.LICENSE"].strip(),
        # A file name may hold bytes that are no text.
        title=escape(timeline.source.encode("utf-8", "replace").decode()),
        style=style,
        script=script,
        data=packed(timeline),
    )
