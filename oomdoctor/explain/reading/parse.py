"""The out-of-memory messages that are known, and their parser.

A row of `data/dialects.toml` says how a message opens and which figures it may contain. The parser
looks for each figure separately, so it still gets what is there if a log wrapped or truncated the
message.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from math import prod
from typing import Any

from oomdoctor.explain.reading.printed_sizes import SHORT_SIZE, SIZE, rounding_bytes, size_bytes
from oomdoctor.package_data import data_of
from oomdoctor.records.facts.dtypes import SIZES
from oomdoctor.records.job.measurement import OomEvent
from oomdoctor.records.report.diagnosis import Frame, ListedProcess, ReadPhase, Resource

_INNER = 6  # frames


@dataclass(frozen=True, slots=True)
class Dialect:
    """One wording of a message.

    `name` is the contract's name, `versions` the releases that print it, `source` the file that
    does. `opening` finds the message. `hints` are plain words separated by |; every line on which
    `opening` can start contains one of them, so other lines are skipped quickly. `figures` maps
    fields of `OomEvent` to patterns with one group that is a size.

    `phase`: when this message appears, if the traceback does not tell.
    `whole_line`: the opening counts only at the start of a line; elsewhere it is just a phrase.
    `lived_on`: only a process that is still alive prints it or is named in it, so an earlier
    failure of that process did not end the run.
    `hints_only`: it reports the end of a process, and any earlier failure explains it as well.
    `prints_shape`: it prints the shape and the type of the tensor.
    `on_host`: if this pattern is found, the memory was host memory.
    `binary_units`: its KB, MB and GB are powers of 1024.
    `announces`: a warning before the message of the same failure, which says more.
    `beside`: like `figures`, but on separate lines before or after the message.
    `in_frames`: the words count only if this pattern is found in the innermost frames.
    """

    name: str
    versions: str
    source: str
    opening: re.Pattern[str]
    figures: Mapping[str, str]
    hints: str
    resource: Resource = "gpu"
    phase: ReadPhase = "unknown"
    whole_line: bool = False
    lived_on: bool = False
    hints_only: bool = False
    prints_shape: bool = False
    on_host: str | None = None
    binary_units: bool = False
    announces: bool = False
    in_frames: str | None = None
    beside: Mapping[str, str] = field(default_factory=dict)

    def applies_to(self, frames: Sequence[Frame]) -> bool:
        """Whether the traceback of a message allows this row."""
        if self.in_frames is None:
            return True
        inner = " ".join(f"{frame.file} {frame.function}" for frame in frames[-_INNER:])
        return re.search(self.in_frames, inner) is not None


NO_DIALECT = Dialect("not_oom", "", "", re.compile("(?!)"), {}, "")
"""That of a failure that is not one of memory."""
_WORDS = {
    "SIZE": SIZE,
    "SHORT": SHORT_SIZE,
    "BYTES": r"\d[\d,]*",
    "NUMBER": r"\d+(?:\.\d+)?",
    "UNIT": r"[KMGT]i?B",
}


def _row(row: dict[str, Any]) -> Dialect:
    """A row of the file, with its patterns written out."""
    opening, figures, beside = row.pop("opening"), row.pop("figures", {}), row.pop("beside", {})
    pattern = re.sub("SIZE", lambda _: SIZE, "".join(opening))
    own = _SETS[figures] if isinstance(figures, str) else _captured(figures)
    return Dialect(**row, opening=re.compile(pattern), figures=own, beside=_captured(beside))


def _captured(figures: Mapping[str, str]) -> dict[str, str]:
    """Patterns of figures whose size is a group."""
    words = "|".join(_WORDS)
    return {
        name: re.sub(words, lambda word: f"({_WORDS[word[0]]})", text)
        for name, text in figures.items()
    }


_TABLE = data_of("dialects.toml")
_SETS = {name: _captured(figures) for name, figures in _TABLE["figures"].items()}
_SENTENCES = _SETS["sentences"]  # the figures of torch since 2.1, which lists other processes too
DIALECTS = tuple(_row(row) for row in _TABLE["dialect"])
OF_PYTORCH = frozenset({"cuda_caching_allocator", "hip", "xpu"})
"""The dialects of PyTorch's caching allocator: they count what it gave to tensors, and print the
segment that it requested. Several processes and a display can share their devices."""


def any_hint(rows: Iterable[str]) -> re.Pattern[str]:
    """A pattern that matches if any of the hints of these rows is present."""
    words = dict.fromkeys(word for hints in rows for word in hints.split("|"))
    return re.compile("|".join(words))


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
    for name, pattern in dialect.figures.items():
        match = figure(pattern).search(text)
        if match is not None:
            printed = printed_size(match)
            values[name] = size_bytes(printed, dialect.binary_units)
            if name in _SUMMED:
                slack += rounding_bytes(printed, dialect.binary_units)
            last = max(last, match.end())
    if (values.get("process_bytes") or 0) < (values.get("allocated_bytes") or 0):
        values["process_bytes"] = None  # in a container the driver may not see the process
    listed: tuple[ListedProcess, ...] = ()
    if dialect.figures is _SENTENCES:
        sizes = ((int(m[1]), size_bytes(m[2])) for m in _LISTED.finditer(text))
        listed = tuple(ListedProcess(pid, size) for pid, size in sizes if size is not None)
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
