"""The parser of out-of-memory messages, driven by the table of dialects.

A row says how a message opens and which figures it may contain. The parser looks for each figure
separately, so it still gets what is there if a log wrapped or truncated the message.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from math import prod

from oomdoctor.explain.reading.dialects import DIALECTS, SENTENCES, Dialect, any_hint
from oomdoctor.explain.reading.printed_sizes import SIZE, rounding_bytes, size_bytes
from oomdoctor.records.facts.dtypes import SIZES
from oomdoctor.records.job.measurement import OomEvent
from oomdoctor.records.report.diagnosis import ListedProcess, Resource

# A line without a match cannot open a message.
MAY_OPEN = any_hint(dialect.hints for dialect in DIALECTS)


@dataclass(frozen=True, slots=True)
class Message:
    """One message as read, without its surroundings."""

    event: OomEvent
    dialect: Dialect
    resource: Resource
    start: int
    end: int
    listed_processes: tuple[ListedProcess, ...] = ()
    tensor_shape: tuple[int, ...] = ()
    tensor_dtype: str | None = None


_REACH = 1600  # characters after an opening that may contain its figures
_LONGEST_OPENING = 400
_SUMMED = ("capacity_bytes", "free_bytes", "process_bytes")  # of which the rest is others'
_ANSI = re.compile(r"\x1b\[[0-9;]*[A-Za-z]")
_WRAP = re.compile(r"\s*\n\s*(?:\[rank\d+\]:\s*|#\s*)?|[ \t\r\0]+")
_LISTED = re.compile(rf"Process (\d+) has ({SIZE}) memory in use")
_TAIL = re.compile(r"[^.)\n]{0,120}[.)]")
_SHAPE = re.compile(r"shape ?[\[(]([\d, ]+)[\])](?: and (?:data )?type (\w+))?")


def parse_oom(text: str, phase: str = "unknown") -> OomEvent | None:
    """The first out-of-memory message in a text, None if there is none.

    `phase` is the phase, if the caller knows it. Figures are exact integers: the printed number
    times its unit; None if not printed. Words that only hint at a kill from outside, such as a bare
    exit code, do not count as a message, nor do words that only a traceback makes clear.
    """
    message = read_message(flatten(text), phase)
    if message is None or message.dialect.hints_only or message.dialect.in_frames:
        return None
    return message.event


def flatten(text: str) -> str:
    """The text on one line, without colors, rank prefixes and comment signs."""
    return _WRAP.sub(" ", _ANSI.sub("", text))


def read_message(flat: str, phase: str = "unknown", within: int | None = None) -> Message | None:
    """The first message that opens within the first `within` characters of a flattened text."""
    opened = _first(flat, 0, len(flat) if within is None else within, flat[:within])
    if opened is None:
        return None
    dialect, opening = opened
    end = min(opening.start() + _REACH, len(flat))
    following = _first(flat, opening.end(), end)
    if following is not None:
        end = following[1].start()
    text = flat[opening.start() : end]
    values: dict[str, int | None] = {}
    slack = 0
    last = opening.end() - opening.start()
    for field, pattern in dialect.figures.items():
        match = figure(pattern).search(text)
        if match is not None:
            printed = printed_size(match)
            values[field] = size_bytes(printed, dialect.binary_units)
            if field in _SUMMED:
                slack += rounding_bytes(printed, dialect.binary_units)
            last = max(last, match.end())
    listed: tuple[ListedProcess, ...] = ()
    if dialect.figures is SENTENCES:
        listed = _listed(text)
        values["other_processes_bytes"] = _other_processes(text, listed, values, slack)
    shape, dtype = _shape(text) if dialect.prints_shape else ((), None)
    if values.get("requested_bytes") is None and shape and dtype in SIZES:
        values["requested_bytes"] = prod(shape) * SIZES[dtype]
    tail = _TAIL.match(text, last)
    shown = text[: tail.end() if tail else last].strip()
    on_host = dialect.on_host is not None and re.search(dialect.on_host, text)
    return Message(
        event=OomEvent(message=shown, dialect=dialect.name, phase=phase, **values),
        dialect=dialect,
        resource="host" if on_host else dialect.resource,
        start=opening.start(),
        end=opening.start() + last,
        listed_processes=listed,
        tensor_shape=shape,
        tensor_dtype=dtype,
    )


@cache
def figure(pattern: str) -> re.Pattern[str]:
    """Compiled on first use: a message needs only the figures of its dialect."""
    return re.compile(pattern, re.IGNORECASE)


def printed_size(match: re.Match[str]) -> str:
    """The size that a figure's pattern matched; of `9.87/23.99 GiB`, number and unit are apart."""
    return " ".join(group for group in match.groups() if group)


def _first(
    text: str, start: int, stop: int, line: str | None = None
) -> tuple[Dialect, re.Match[str]] | None:
    """The row that opens first between two positions; at a tie, the earlier row."""
    best: tuple[Dialect, re.Match[str]] | None = None
    for dialect in DIALECTS:
        if dialect.whole_line:
            match = None if line is None else dialect.opening.match(line.strip())
        else:
            match = dialect.opening.search(text, start, stop + _LONGEST_OPENING)
        if match is not None and match.start() < stop:
            best, stop = (dialect, match), match.start()
    return best


def _shape(text: str) -> tuple[tuple[int, ...], str | None]:
    match = _SHAPE.search(text)
    if match is None:
        return (), None
    return tuple(int(part) for part in match[1].split(",") if part.strip().isdigit()), match[2]


def _listed(message: str) -> tuple[ListedProcess, ...]:
    listed = ((int(m[1]), size_bytes(m[2])) for m in _LISTED.finditer(message))
    return tuple(ListedProcess(pid, size) for pid, size in listed if size is not None)


def _other_processes(
    message: str, listed: tuple[ListedProcess, ...], values: Mapping[str, int | None], slack: int
) -> int | None:
    """Bytes that other processes hold on the device; None if the message does not say.

    Normally the processes listed beside "this process", or else what is neither free nor ours;
    the figures are rounded, so up to `slack` bytes of that may be nothing. If
    "this process" is not named (containers hide our own process id), a listed process may be
    ourselves: it is if all of them plus our allocator exceed what is in use.
    """
    sizes = [process.used_bytes for process in listed]
    total, free, own = (values.get(f"{k}_bytes") for k in ("capacity", "free", "process"))
    if "this process has" in message:
        if sizes or total is None or free is None or own is None:
            return sum(sizes) if sizes else None
        rest = total - free - own
        return rest if rest > slack else 0
    allocated, unallocated = values.get("allocated_bytes"), values.get("reserved_unallocated_bytes")
    if not sizes or total is None or free is None or allocated is None or unallocated is None:
        return None
    reserved = allocated + unallocated
    if sum(sizes) + reserved <= total - free:
        return sum(sizes)
    speaker = min((size for size in sizes if size >= reserved), default=None)
    return None if speaker is None else sum(sizes) - speaker
