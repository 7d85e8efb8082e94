"""The dialects of out-of-memory messages in one table, and the parser that reads them.

A row says how a message opens and which figures it may hold. Openings are told apart by their
wording alone; figures are looked for one by one, so a message that a log wrapped or cut short
still gives what it has. A new dialect is a new row; a new figure is a new pattern in `figures`.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from math import prod

from oomdoctor.explain.reading.dialects.dialect import Dialect
from oomdoctor.explain.reading.dialects.host import HOST
from oomdoctor.explain.reading.dialects.libraries import OTHERS
from oomdoctor.explain.reading.dialects.pytorch import SENTENCES, TORCH
from oomdoctor.explain.reading.printed_sizes import SIZE, size_bytes
from oomdoctor.records.diagnosis import ListedProcess, Resource
from oomdoctor.records.facts.dtypes import SIZES
from oomdoctor.records.measurement import OomEvent

# Order decides only between rows that open at the same character: the special before the general.
DIALECTS: tuple[Dialect, ...] = (*TORCH, *OTHERS, *HOST)


@dataclass(frozen=True, slots=True)
class Message:
    """One message as it was read, before anything around it is known."""

    event: OomEvent
    dialect: Dialect
    resource: Resource
    start: int
    end: int
    listed_processes: tuple[ListedProcess, ...] = ()
    tensor_shape: tuple[int, ...] = ()
    tensor_dtype: str | None = None


_REACH = 1600  # characters after an opening in which its figures stand
_LONGEST_OPENING = 400
_ANSI = re.compile(r"\x1b\[[0-9;]*[A-Za-z]")
_WRAP = re.compile(r"\s*\n\s*(?:\[rank\d+\]:\s*|#\s*)?|[ \t\r\0]+")
_LISTED = re.compile(rf"Process (\d+) has ({SIZE}) memory in use")
_TAIL = re.compile(r"[^.)\n]{0,120}[.)]")
_SHAPE = re.compile(r"shape ?[\[(]([\d, ]+)[\])](?: and (?:data )?type (\w+))?")
_HOST_DEVICE = re.compile(r"by allocator (?:mkl)?cpu|device:CPU")
_PRINTED_BYTES = re.compile(r"(?:allocating|buffer of size|alloc of size|allocation of) ([\d,]+)")


def parse_oom(text: str, phase: str = "unknown") -> OomEvent | None:
    """The first out-of-memory message in a text, None if there is none.

    `phase` is what the caller knows of the moment. Figures are exact integers of the printed
    figure times its unit; what is not printed is None. Words that only hint at a kill from
    outside (a bare exit code) are no message.
    """
    message = read_message(flatten(text), phase)
    return None if message is None or message.dialect.hints_only else message.event


def flatten(text: str) -> str:
    """The text on one line, without colours, prefixes of ranks and comment signs."""
    return _WRAP.sub(" ", _ANSI.sub("", text))


def read_message(flat: str, phase: str = "unknown", within: int | None = None) -> Message | None:
    """The first message that opens in the first `within` characters of a flattened text."""
    found = _first(flat, 0, len(flat) if within is None else within, flat[:within])
    if found is None:
        return None
    dialect, opening = found
    end = min(opening.start() + _REACH, len(flat))
    following = _first(flat, opening.end(), end)
    if following is not None:
        end = following[1].start()
    text = flat[opening.start() : end]
    values: dict[str, int | None] = {}
    last = opening.end() - opening.start()
    for field, pattern in dialect.figures.items():
        match = _figure(pattern).search(text)
        if match is not None:
            values[field] = size_bytes(match[1])
            last = max(last, match.end())
    listed: tuple[ListedProcess, ...] = ()
    if dialect.figures is SENTENCES:
        listed = _listed(text)
        values["other_processes_bytes"] = _other_processes(text, listed, values)
    shape, dtype = _shape(text) if dialect.name in ("tensorflow", "numpy") else ((), None)
    if values.get("requested_bytes") is None:
        values["requested_bytes"] = _unusual_request(text[: last + 40], dialect, shape, dtype)
    tail = _TAIL.match(text, last)
    shown = text[: tail.end() if tail else last].strip()
    on_host = dialect.name == "tensorflow" and _HOST_DEVICE.search(text)
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
def _figure(pattern: str) -> re.Pattern[str]:
    """Compiled when first asked for: a message needs the figures of its own dialect only."""
    return re.compile(pattern, re.IGNORECASE)


def _first(
    text: str, start: int, stop: int, line: str | None = None
) -> tuple[Dialect, re.Match[str]] | None:
    """The row that opens first between two places; the earlier of two rows at one place."""
    best: tuple[Dialect, re.Match[str]] | None = None
    for dialect in DIALECTS:
        if dialect.whole_line:
            match = None if line is None else dialect.opening.match(line.strip())
        else:
            match = dialect.opening.search(text, start, stop + _LONGEST_OPENING)
        if match is not None and match.start() < stop:
            best, stop = (dialect, match), match.start()
    return best


def _unusual_request(
    text: str, dialect: Dialect, shape: tuple[int, ...], dtype: str | None
) -> int | None:
    """The request where it is printed as a bare number of bytes or as a shape with its type."""
    if shape and dtype in SIZES and dialect.name == "tensorflow":
        return prod(shape) * SIZES[dtype]
    if dialect.name in ("xla", "cuda_driver", "cpu_allocator", "llamacpp"):
        match = _PRINTED_BYTES.search(text)
        if match is not None and match[1].strip(","):
            return int(match[1].replace(",", ""))
    return None


def _shape(text: str) -> tuple[tuple[int, ...], str | None]:
    match = _SHAPE.search(text)
    if match is None:
        return (), None
    return tuple(int(part) for part in match[1].split(",") if part.strip().isdigit()), match[2]


def _listed(message: str) -> tuple[ListedProcess, ...]:
    found = ((int(m[1]), size_bytes(m[2])) for m in _LISTED.finditer(message))
    return tuple(ListedProcess(pid, size) for pid, size in found if size is not None)


def _other_processes(
    message: str, listed: tuple[ListedProcess, ...], values: Mapping[str, int | None]
) -> int | None:
    """Bytes that other processes hold on the device; None where the message does not tell.

    The processes that are listed beside "this process", else what is neither free nor this
    process's. Without "this process" (containers hide the own id) a listed process may be the
    speaker itself: it is when all of them and this allocator together exceed what is in use.
    """
    sizes = [process.used_bytes for process in listed]
    total, free, own = (values.get(f"{k}_bytes") for k in ("capacity", "free", "process"))
    if "this process has" in message:
        if sizes or total is None or free is None or own is None:
            return sum(sizes) if sizes else None
        return max(0, total - free - own)
    allocated, unallocated = values.get("allocated_bytes"), values.get("reserved_unallocated_bytes")
    if not sizes or total is None or free is None or allocated is None or unallocated is None:
        return None
    reserved = allocated + unallocated
    if sum(sizes) + reserved <= total - free:
        return sum(sizes)
    speaker = min((size for size in sizes if size >= reserved), default=None)
    return None if speaker is None else sum(sizes) - speaker
