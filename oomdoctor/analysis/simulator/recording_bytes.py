"""The recordings of a rung as compact bytes, and back.

A pack has sections of zlib-compressed JSON, after a line with their lengths. What a request does
not need is not read, and what did not change is written as it is. The bytes may come from anywhere:
nothing in them is run, and a value that does not fit is a `ValueError`.
"""

from __future__ import annotations

import json
import zlib
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cached_property
from itertools import accumulate
from typing import Any, TypeVar

from oomdoctor.analysis.simulator.recorded import (
    Computed,
    Cost,
    Floors,
    Played,
    Recorded,
    RungFacts,
)
from oomdoctor.analysis.simulator.recording_columns import (
    checked,
    cost_columns,
    head_columns,
    read_costs,
    read_head,
    read_tape,
    tape_columns,
)
from oomdoctor.analysis.simulator.tape import Tape
from oomdoctor.records.codec import from_json, shared, to_json
from oomdoctor.records.facts.categories import CATEGORIES

T = TypeVar("T")
_LARGEST = 256 << 20  # of a section when unpacked; a real one has a few hundred KiB
_LEVEL = 3
_OWN = 2  # sections before those of recordings: the facts, and what was computed
_EACH = 3  # sections of a recording: its head, its tape, its costs


@dataclass(frozen=True, slots=True)
class Pack:
    """The recordings of a rung, what is the same in all of them, and what follows from them."""

    facts: RungFacts
    recordings: tuple[Recorded, ...]
    computed: Computed = field(default_factory=dict)


class _Kept(Recorded):
    """A recording in a pack. Its tape and its costs are read when they are asked for.

    They raise a ValueError if they are damaged.
    """

    def __init__(self, sections: tuple[bytes, ...]) -> None:
        head, self._tape, self._costs = sections
        self.sections = sections
        values = _read(head, read_head)
        self.size = values["size"]
        self.alike = values["alike"]
        self.attention_operators = values["attention_operators"]
        self.managed_bytes = values["managed_bytes"]
        self._windows: list[tuple[int, str, str]] = values["windows"]

    @property
    def windows(self) -> list[tuple[int, str, str]]:
        return self._windows

    @cached_property
    def _step(self) -> tuple[Tape, dict[int, int], Tape | None]:
        return _read(self._tape, lambda columns: read_tape(columns, self._windows))

    @cached_property
    def _work(self) -> tuple[list[Cost], list[Cost]]:
        return _read(self._costs, lambda columns: read_costs(columns, self._windows))

    @cached_property
    def tape(self) -> Tape:  # type: ignore[override]
        return self._step[0]

    @cached_property
    def taken(self) -> dict[int, int]:  # type: ignore[override]
        return self._step[1]

    @cached_property
    def accumulated(self) -> Tape | None:  # type: ignore[override]
        return self._step[2]

    @cached_property
    def costs(self) -> list[Cost]:  # type: ignore[override]
        return self._work[0]

    @cached_property
    def adding(self) -> list[Cost]:  # type: ignore[override]
        return self._work[1]

    def whole(self) -> Recorded:
        """The same, with everything read."""
        return Recorded(**shared(self, Recorded))


def packed(pack: Pack) -> bytes:
    """The bytes of a pack."""
    sections = [_section(to_json(pack.facts)), _section(to_json(pack.computed))]
    for recorded in pack.recordings:
        if isinstance(recorded, _Kept):
            sections += recorded.sections
        else:
            columns = (head_columns(recorded), tape_columns(recorded), cost_columns(recorded))
            sections += map(_section, columns)
    lengths = json.dumps([len(section) for section in sections], separators=(",", ":"))
    return b"".join((lengths.encode(), b"\n", *sections))


def opened(data: bytes) -> Pack:
    """The pack of some bytes, of which tapes and costs are read when they are asked for.

    Raises:
        ValueError: they are damaged, or not of this version; also later, when they are read.
    """
    sections = _sections(data)
    facts = _read(sections[0], lambda value: from_json(RungFacts, value))
    computed = _read(sections[1], _computed)
    starts = range(_OWN, len(sections), _EACH)
    kept = tuple(_Kept(tuple(sections[start : start + _EACH])) for start in starts)
    return Pack(facts, kept, computed)


def unpacked(data: bytes) -> Pack:
    """The whole pack of some bytes.

    Raises:
        ValueError: they are damaged, or not of this version.
    """
    pack = opened(data)
    whole = (kept.whole() for kept in pack.recordings if isinstance(kept, _Kept))
    return Pack(pack.facts, tuple(whole), pack.computed)


def _section(document: Any) -> bytes:
    return zlib.compress(json.dumps(document, separators=(",", ":")).encode(), _LEVEL)


def _sections(data: bytes) -> list[bytes]:
    line, _, rest = data.partition(b"\n")
    try:
        lengths = json.loads(line)
    except RecursionError as error:
        raise ValueError("not the sections of a pack") from error
    if type(lengths) is not list or len(lengths) < _OWN or (len(lengths) - _OWN) % _EACH:
        raise ValueError("not the sections of a pack")
    if min(checked(int, length) for length in lengths) < 0 or sum(lengths) != len(rest):
        raise ValueError("not the lengths of the sections")
    ends = accumulate(lengths)
    return [rest[end - length : end] for length, end in zip(lengths, ends, strict=True)]


def _computed(document: Any) -> Computed:
    """What was computed, with what every such record has and its types do not say."""
    computed = from_json(Computed, document)
    for key, value in computed.items():
        if isinstance(value, Floors) and set(value.parts) != set(CATEGORIES):
            raise ValueError(f"{key}: not the bytes of each category")
        if isinstance(value, Played) and any(
            memory.peak_reserved_bytes is None
            for phases in value.steps.values()
            for memory in phases.values()
        ):
            raise ValueError(f"{key}: a replay without the reserved bytes of a phase")
    return computed


def _read(section: bytes, read: Callable[[Any], T]) -> T:
    """What a section holds.

    Raises:
        ValueError: it is damaged.
    """
    try:
        stream = zlib.decompressobj()
        text = stream.decompress(section, _LARGEST)
        if not stream.eof:
            raise ValueError("truncated or too large")
        return read(json.loads(text))
    except (zlib.error, LookupError, TypeError, AttributeError, RecursionError) as error:
        raise ValueError(f"damaged recordings: {error}") from error
