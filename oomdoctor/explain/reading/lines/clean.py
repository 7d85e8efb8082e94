"""Strips everything that terminals and loggers add to the text of a log.

It removes colors and other escapes, overwritten states of progress bars, rich's boxes with the
values of variables, escapes of JSON and HTML around tracebacks, and curly quotation marks.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any, NamedTuple

from oomdoctor.explain.reading.patterns import patterns

_RE = patterns("clean")
_LONG_LINE = 1 << 15


class Line(NamedTuple):
    """One clean line and its number in the log; all pieces of one line share its number."""

    number: int
    text: str


_STRAIGHT = str.maketrans("\u201c\u201d\u201e\u2018\u2019", '"""\'\'')
_ENTITIES = {
    "&quot;": '"', "&#34;": '"', "&#034;": '"', "&#x22;": '"', "&apos;": "'", "&#39;": "'",
    "&#039;": "'", "&#x27;": "'", "&lt;": "<", "&gt;": ">", "&amp;": "&", "&nbsp;": " ",
}  # fmt: skip
# Text that was read from a picture: "out of menory", "8.00 Gi8".
_SCANNED = ("menory", "nemory")
_BARS = "│┃║"
_LEFT_EDGES, _RIGHT_EDGES, _RULES = "╭╰┌└┏┗╔╚", "╮╯┐┘┓┛╗╝", "─━═"
_BOX_STARTS = _BARS + _LEFT_EDGES + " "
_JSON_LIMIT = 1 << 20


def clean(text: str, number: int) -> Iterator[Line]:
    """The lines of a piece of a log, numbered from `number`; long lines are cut."""
    if _RE["control"].search(text):
        text = _RE["escapes"].sub("", text)
    if not text.isascii() and _RE["curly"].search(text):
        text = text.translate(_STRAIGHT)
    if "&" in text:
        text = _RE["entity"].sub(lambda entity: _ENTITIES[entity[0]], text)
    if any(word in text for word in _SCANNED):
        text = _RE["scanned_unit"].sub(r" \1iB", _RE["scanned_word"].sub("memory", text))
    half = ""  # the first part of a path that a box wrapped
    raws = text.split("\n")
    if not raws[-1]:
        raws.pop()  # nothing follows the last line end
    for raw in raws:
        line = raw[:-1] if raw.endswith("\r") else raw
        if not line:
            yield Line(number, "")
        elif line[0] in _BOX_STARTS and (boxed := _unboxed(line)) is not None:
            if _is_box(boxed):  # rich draws the variables of a frame in an inner box
                number += 1
                continue
            if half and not _RE["box_place"].search(half):
                boxed, half = half + boxed, ""
            if (
                _RE["box_path"].match(boxed)
                and not _RE["box_place"].search(boxed)
                and len(boxed) < 1000
            ):
                half = boxed
            else:
                half = ""
                yield Line(number, boxed)
        else:
            if half:
                yield Line(number, half)
                half = ""
            for piece in _pieces(line):
                yield Line(number, piece)
        number += 1
    if half:
        yield Line(number, half)


def _unboxed(line: str) -> str | None:
    """The text inside a box that rich draws; None if the line is not part of a box."""
    inner = line.strip()
    if len(inner) < 2:
        return None
    if inner[0] in _BARS and inner[-1] in _BARS:
        text = inner[1:-1].rstrip()
        return text[1:] if text.startswith(" ") else text
    if inner[0] in _LEFT_EDGES and inner[-1] in _RIGHT_EDGES and inner[1] in _RULES:
        return inner[1:-1].strip(_RULES).strip()
    return None


def _is_box(text: str) -> bool:
    inner = text.strip()
    edges = inner[:1] + inner[-1:]
    return len(inner) > 1 and (
        (edges[0] in _BARS and edges[1] in _BARS)
        or (edges[0] in _LEFT_EDGES and edges[1] in _RIGHT_EDGES)
    )


def _pieces(line: str) -> Iterator[str]:
    """A line without overwritten states of progress bars, unescaped, and cut to size."""
    if "\r" in line:
        parts = [part for part in line.split("\r") if part.strip()]
        last = len(parts) - 1
        for index, part in enumerate(parts):
            # Text that follows a bar on the same line is worth keeping.
            if index == last or len(part) > 300 or not _RE["bar"].search(part):
                yield from _pieces(part)
        return
    if "\\n" in line and len(line) <= _JSON_LIMIT:
        unescaped = _unescaped(line)
        if unescaped is not None:
            for part in unescaped:
                yield from _cut(part)
            return
    yield from _cut(line)


def _cut(line: str) -> Iterator[str]:
    start = 0
    while len(line) - start > _LONG_LINE:
        end = line.rfind(" ", start, start + _LONG_LINE) + 1
        if end <= start:
            end = start + _LONG_LINE
        yield line[start:end]
        start = end
    yield line[start:] if start else line


_DATA_KEYS = frozenset(
    {
        *("instruction", "prompt", "question", "query", "chosen", "rejected", "completion"),
        *("title", "body", "messages", "conversations", "answer", "input", "output", "text"),
        *("response", "content", "role"),
    }
)
_LOG_KEYS = frozenset({"error", "level", "severity", "exception", "traceback", "stderr", "evalue"})


def _unescaped(line: str) -> list[str] | None:
    """The lines inside a JSON record or a quoted string; None for an ordinary line."""
    stripped = line.strip()
    if stripped.startswith("{") and stripped.endswith("}"):
        try:
            record = json.loads(stripped)
        except (ValueError, RecursionError):
            record = None
        if isinstance(record, dict):
            if len(_DATA_KEYS & record.keys()) > 1 and not _LOG_KEYS & record.keys():
                return [line]  # a row of data, whose text is not a log
            texts = list(_strings(record, 0))
            if any("\n" in text for text in texts):
                return [part for text in texts for part in text.split("\n")]
    if _RE["escaped_text"].search(line):
        text = line.replace("\\r", "").replace("\\n", "\n").replace('\\"', '"')
        return text.replace("\\t", "\t").rstrip('"}], ').split("\n")
    return None


def _strings(value: Any, depth: int) -> Iterator[str]:
    if isinstance(value, str):
        yield value
    elif depth < 6 and isinstance(value, dict):
        for key, item in value.items():
            if isinstance(item, int | float):
                yield f"{key}={item}"
            else:
                yield from _strings(item, depth + 1)
    elif depth < 6 and isinstance(value, list):
        for item in value:
            yield from _strings(item, depth + 1)
