"""Tells words about memory that a log only quotes from a failure that it reports.

Quoted are: source code, comments in it, shell commands, changes and commit messages, configuration,
documentation, and rows of data. People also paste real messages as comments, in backticks and in
lists, so only clear signs count, and a message with the figures of a card needs more of them.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from typing import NamedTuple

from oomdoctor.explain.reading.lines.traceback import frame_in, starts_traceback
from oomdoctor.explain.reading.patterns import patterns

NEAR = 30  # lines around that may show what a line belongs to
_LISTING = 6  # lines around that may be source code

_RE = patterns("quoted")
_FENCE = 4
_Test = Callable[[str], object]


class Place(NamedTuple):
    """A line as it is, its text before, in and after the words, and the lines around it."""

    raw: str
    lead: str
    words: str
    tail: str
    before: Sequence[str] = ()
    after: Sequence[str] = ()


def quoted(place: Place, detailed: bool) -> bool:
    """Whether a line only quotes words about memory.

    `detailed`: the words come with the figures of a card.
    """
    return (
        _in_code(place)
        or _in_command_or_change(place)
        or _in_data(place)
        or _for_the_reader(place, detailed)
        or (not detailed and (_in_documentation(place) or _in_listing(place)))
    )


def _in_code(place: Place) -> bool:
    raw, lead = place.raw, place.lead
    above = next((line for line in reversed(place.before) if line.strip()), "")
    if _RE["literal"].search(lead) and (_RE["call"].search(above) or _RE["entry"].search(raw)):
        return True
    if _RE["code"].search(lead) and (not _RE["repr"].search(lead) or _RE["statement"].search(lead)):
        return True
    if (
        _RE["numbered_comment"].search(lead)
        or _RE["test_id"].search(lead)
        or _RE["found"].search(raw)
    ):
        return True
    match = _RE["found_in_code"].match(raw)
    return match is not None and not _RE["reported"].search(raw[match.end() :])


def _in_command_or_change(place: Place) -> bool:
    raw, text = place.raw, place.raw.strip()
    if _RE["command"].search(raw) or _RE["one_line_commit"].search(raw):
        return True
    commands = (line for line in place.before[-3:] if _RE["command"].search(line))
    if len(text) > 15 and any(text in line for line in commands):
        return True
    if raw[:1] in "+-" and _last(_RE["hunk"].search, place.before) >= 0:
        return True
    commit = _last(_RE["commit"].search, place.before)
    in_commit = commit > _last(starts_traceback, place.before)
    return raw.startswith("    ") and in_commit


def _in_data(place: Place) -> bool:
    row = _RE["row"].search(place.lead)
    if row is not None and len(_RE["exception"].sub("", place.lead[row.end() :]).split()) > 1:
        return True
    if _RE["chat"].search(place.lead) or _RE["dump"].search(place.lead):
        return True
    if _RE["csv"].search(place.lead) and _RE["csv_next"].search(place.tail):
        return True
    if not _RE["error_key"].search(place.raw):
        several = len(_RE["key"].findall(place.raw)) > 1
        if _RE["strong_value"].search(place.lead):
            return True
        if several and _RE["value_of_row"].search(place.lead):
            return True
    ends: tuple[_Test, ...] = (_RE["chat_end"].search, starts_traceback)
    began = _last(_RE["chat"].search, place.before)
    goes_on = began > max(_last(test, place.before) for test in ends)
    ended, traceback = (_first(test, place.after) for test in ends)
    return goes_on and ended < traceback


def _for_the_reader(place: Place, detailed: bool) -> bool:
    """Whether the sentence says what to do if or before memory runs out."""
    above = [line.strip() for line in place.before[-_FENCE:]]
    above = [line for line in above if line and not line.startswith("```")]
    if above and _RE["announced"].search(above[-1]) and not _RE["first_person"].search(above[-1]):
        return True
    lead = _RE["exception"].sub("", place.lead[-300:])
    sentence = re.split(r"(?<=[.!?]) ", lead)[-1]
    if _RE["first_person"].search(sentence):
        return False
    told = _RE["condition"].search(sentence)
    if detailed:
        return told is not None and " you" in told[0]
    return told is not None or _RE["advice"].search(sentence) is not None


def _in_documentation(place: Place) -> bool:
    raw = place.raw
    figures = _RE["figure"].search(place.words) is not None
    if _RE["setting"].search(raw) or _RE["trailing_comment"].search(place.lead):
        return True
    if _RE["option"].search(raw):
        return True
    if not figures and (_RE["heading"].search(raw) or _RE["explained"].search(place.tail)):
        return True
    defined = _RE["defined"].search(raw)
    if defined is not None and place.words[:20] in defined[1]:
        return True
    # An item of a list that belongs to a setting.
    head = next((line for line in reversed(place.before) if not _RE["item"].search(line)), "")
    return bool(_RE["item"].search(raw) and _RE["setting"].search(head))


def _in_listing(place: Place) -> bool:
    """Whether source code or configuration is around a comment or a docstring."""
    near = [line for line in place.before[-_LISTING:] if line.strip()]
    after = [line for line in place.after[:3] if line.strip()]
    around = (*near, *after)
    if any(starts_traceback(line) or frame_in(line) for line in around):
        return False
    code = sum(_RE["python"].search(line) is not None for line in around)
    if _RE["comment"].search(place.raw):
        return code + sum(_RE["settings"].search(line) is not None for line in around) >= 2
    documented = any(_RE["docstring"].search(line) for line in near)
    goes_on = any(_RE["python"].search(line) for line in after)
    return place.raw.startswith((" ", "\t")) and code >= 2 and (documented or goes_on)


def _last(test: _Test, texts: Sequence[str]) -> int:
    return next((i for i in range(len(texts) - 1, -1, -1) if test(texts[i])), -1)


def _first(test: _Test, texts: Sequence[str]) -> int:
    return next((i for i, text in enumerate(texts) if test(text)), len(texts))
