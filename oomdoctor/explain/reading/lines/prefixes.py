"""Splits off what precedes the text of a line: timestamps, log levels, ranks, hosts, comment signs.

A line becomes a tag (which process wrote it), a rank if one is named, and the text with its own
indentation. The lines with the same tag, in order, are the output of one process.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import NamedTuple

from oomdoctor.explain.reading.patterns import patterns

_RE = patterns("prefixes")
_MOST_PREFIXES = 6


class Split(NamedTuple):
    """One line without its prefixes. `tag` is "" if no process is named."""

    tag: str
    rank: int | None
    text: str


def split_line(line: str) -> Split:
    """The tag, the rank and the text of a line, with its indentation."""
    tag, rank, start = "", None, 0
    for _ in range(_MOST_PREFIXES):
        while start < len(line) and start < 64 and line[start] == " " and not tag:
            if line.startswith(("File ", "Traceback"), start + 2) or start >= 16:
                break
            start += 1
        match = _RE["ranks"].match(line, start)
        if match is not None:
            rank = int(next(group for group in match.groups() if group is not None))
            tag = f"rank{rank}"
        else:
            match = _RE["tags"].match(line, start)
            if match is not None:
                tag = next(group for group in match.groups() if group is not None)
            else:
                match = _RE["noise"].match(line, start)
        if match is None or match.end() == match.start():
            break
        start = match.end()
    return Split(tag, rank, line[start:])


def process_of(line: str) -> str:
    """The process, host or job that a line names as the one that wrote it; "" if none."""
    split = split_line(line)
    if split.tag:
        return split.tag
    named = _RE["named"].match(split.text.lstrip())
    return next(filter(None, named.groups())) if named else ""


def number_in(tag: str, others: Iterable[str] = ()) -> int | None:
    """The number of the process that a tag names, as in `worker-3` or `pod/trainer-3/main`.

    `others` are the other tags of the log. Without another of the same name, `trainer-1` has no
    number: compose calls the only container of a service so.
    """
    match = _RE["numbered"].search(tag)
    if match is None:
        return None
    number, stem = int(match[1]), tag[: match.start(1)]
    if number != 1 or match[2] is not None or tag.startswith("pod/"):
        return number
    alike = (other for other in others if other.startswith(stem) and _RE["numbered"].search(other))
    return number if any(other != tag for other in alike) else None


def rank_in(text: str) -> int | None:
    """A rank somewhere within a line, as in `model X: [rank5]: OutOfMemoryError`."""
    match = re.search(r"\[(?:rank|Rank |RANK:)(\d{1,5})\]|\brank ?[:=] ?(\d{1,5})\b", text)
    return None if match is None else int(match[1] or match[2])
