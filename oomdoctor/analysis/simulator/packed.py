"""The recordings of a rung as compact bytes, and back.

Tapes are stored as columns, with each text and each cost once, as zlib-compressed JSON. The bytes
may come from anywhere: nothing in them is run, and a value that does not fit is a `ValueError`.
"""

from __future__ import annotations

import json
import zlib
from collections.abc import Iterable, Sequence
from dataclasses import astuple, dataclass, field
from typing import Any, TypeVar

from oomdoctor.analysis.simulator.card import Card
from oomdoctor.analysis.simulator.recorded import (
    Computed,
    Cost,
    Floors,
    Held,
    Played,
    Recorded,
    RungFacts,
    Window,
)
from oomdoctor.analysis.simulator.tape import Region, Tape, TapeBlock
from oomdoctor.records.codec import from_json, to_json
from oomdoctor.records.costs import OpCost
from oomdoctor.records.facts.categories import CATEGORIES

T = TypeVar("T")
_LARGEST = 256 << 20  # of a file when unpacked; a real one has a few MiB
_LEVEL = 3


@dataclass(frozen=True, slots=True)
class Pack:
    """The recordings of a rung, what is the same in all of them, and what follows from them."""

    facts: RungFacts
    recordings: tuple[Recorded, ...]
    computed: Computed = field(default_factory=dict)


def packed(pack: Pack) -> bytes:
    """The bytes of a pack."""
    document = {
        "facts": to_json(pack.facts),
        "recordings": [_columns(recorded) for recorded in pack.recordings],
        "computed": {key: _numbers(value) for key, value in pack.computed.items()},
    }
    return zlib.compress(json.dumps(document, separators=(",", ":")).encode(), _LEVEL)


def unpacked(data: bytes) -> Pack:
    """The pack of some bytes.

    Raises:
        ValueError: they are damaged, or not of this version.
    """
    try:
        stream = zlib.decompressobj()
        text = stream.decompress(data, _LARGEST)
        if not stream.eof:
            raise ValueError("truncated or too large")
        document = json.loads(text)
        recordings = tuple(_recorded(columns) for columns in document["recordings"])
        computed = {key: _found(value) for key, value in document["computed"].items()}
        return Pack(from_json(RungFacts, document["facts"]), recordings, computed)
    except (zlib.error, LookupError, TypeError, AttributeError, RecursionError) as error:
        raise ValueError(f"damaged recordings: {error}") from error


class _Table:
    """Each value once, by number."""

    def __init__(self) -> None:
        self.numbers: dict[Any, int] = {}

    def __call__(self, value: Any) -> int:
        return self.numbers.setdefault(value, len(self.numbers))

    def of(self, values: Iterable[Any]) -> list[int]:
        return [self(value) for value in values]


def _columns(recorded: Recorded) -> dict[str, Any]:
    texts, regions, costs = _Table(), _Table(), _Table()
    tape = recorded.tape
    blocks = tape.blocks
    return {
        "size": recorded.size,
        "blocks": [
            [block.size for block in blocks],
            texts.of(block.category for block in blocks),
            texts.of(block.operator for block in blocks),
            texts.of(block.module for block in blocks),
            regions.of(block.region for block in blocks),
            {str(number): block.rows for number, block in enumerate(blocks) if block.rows},
        ],
        "events": tape.events,
        "regions": regions.of(tape.regions),
        "windows": tape.windows,
        "taken": list(recorded.taken.items()),
        "alike": sorted(card.compute_capability for card in recorded.alike),
        "attention": sorted(recorded.attention_operators),
        "managed": recorded.managed_bytes,
        "costs": _cost_columns(recorded.costs, regions, costs),
        "adding": _cost_columns(recorded.adding, regions, costs),
        "table": {
            "texts": list(texts.numbers),
            "regions": list(regions.numbers),
            "costs": [astuple(cost) for cost in costs.numbers],
        },
    }


def _cost_columns(costs: Sequence[Cost], regions: _Table, table: _Table) -> list[list[int]]:
    return [
        regions.of(cost.region for cost in costs),
        [cost.window for cost in costs],
        table.of(cost.cost for cost in costs),
    ]


def _recorded(columns: dict[str, Any]) -> Recorded:
    table = columns["table"]
    texts = [_checked(str, text) for text in table["texts"]]
    regions = [_region(region) for region in table["regions"]]
    operators = [_op_cost(*cost) for cost in table["costs"]]
    sizes, categories, names, modules, places, rows = columns["blocks"]
    blocks = [
        TapeBlock(size, texts[category], texts[name], texts[module], regions[place])
        for size, category, name, module, place in zip(
            _whole(sizes),
            _places(categories, texts),
            _places(names, texts),
            _places(modules, texts),
            _places(places, regions),
            strict=True,
        )
    ]
    for number, least in rows.items():
        blocks[int(number)].rows = _checked(int, least)
    events = _whole(columns["events"], signed=True)
    if any(not 0 < abs(event) <= len(blocks) for event in events):
        raise ValueError("an event of a block that does not exist")
    windows = [
        (_checked(int, start), _checked(str, step), _checked(str, phase))
        for start, step, phase in columns["windows"]
    ]
    of_events = [regions[place] for place in _places(columns["regions"], regions)]
    if len(of_events) != len(events):
        raise ValueError("events without a unit")

    def costs(name: str) -> list[Cost]:
        units, phases, kinds = columns[name]
        return [
            Cost(regions[unit], phase, operators[kind])
            for unit, phase, kind in zip(
                _places(units, regions),
                _places(phases, windows),
                _places(kinds, operators),
                strict=True,
            )
        ]

    return Recorded(
        size=_checked(int, columns["size"]),
        tape=Tape(blocks, events, of_events, windows),
        taken={_checked(int, block): _checked(int, event) for block, event in columns["taken"]},
        alike={
            Card((_checked(int, major), _checked(int, minor))) for major, minor in columns["alike"]
        },
        attention_operators={_checked(str, name) for name in columns["attention"]},
        managed_bytes=_checked(int, columns["managed"]),
        costs=costs("costs"),
        adding=costs("adding"),
    )


def _checked(kind: type[T], value: Any) -> T:
    if type(value) is not kind:
        raise ValueError(f"expected {kind.__name__}, got {type(value).__name__}")
    return value


def _whole(column: Any, *, signed: bool = False) -> list[int]:
    """A column of whole numbers."""
    if type(column) is not list or set(map(type, column)) - {int}:
        raise ValueError("a column is not of whole numbers")
    if not signed and column and min(column) < 0:
        raise ValueError("a column has negative numbers")
    return column


def _places(column: Any, table: Sequence[Any]) -> list[int]:
    """A column of positions in a table."""
    if (found := _whole(column)) and max(found) >= len(table):
        raise ValueError("a position outside its table")
    return found


def _region(value: Any) -> Region | None:
    if value is None:
        return None
    stack, unit = value
    return _checked(int, stack), _checked(int, unit)


def _op_cost(
    name: Any, kind: Any, dtype: Any, flops: Any, moved: Any, unpacked_bytes: Any
) -> OpCost:
    amounts = [_checked(float, amount) for amount in (flops, moved, unpacked_bytes)]
    return OpCost(_checked(str, name), _checked(str, kind), _checked(str, dtype), *amounts)  # type: ignore[arg-type]


def _numbers(value: Floors | Played | Held | bool) -> Any:
    if isinstance(value, bool):
        return value
    if isinstance(value, Held):
        return to_json(value)
    if isinstance(value, Floors):
        return [value.floor, [[*w, size] for w, size in value.by_window.items()], dict(value.parts)]
    peaks = (value.peak_allocated_bytes, value.peak_reserved_bytes, value.retries)
    return [*peaks, [[*window, *both] for window, both in value.memory.items()]]


def _found(value: Any) -> Floors | Played | Held | bool:
    if isinstance(value, bool):
        return value
    if isinstance(value, dict):
        return from_json(Held, value)
    if len(value) == 3:
        floor, windows, parts = value
        return Floors(
            _checked(int, floor),
            {_window(step, phase): _checked(int, size) for step, phase, size in windows},
            {category: _checked(int, parts[category]) for category in CATEGORIES},
        )
    allocated, reserved, retries, windows = value
    return Played(
        _checked(int, allocated),
        _checked(int, reserved),
        _checked(int, retries),
        {
            _window(step, phase): (_checked(int, first), _checked(int, second))
            for step, phase, first, second in windows
        },
    )


def _window(step: Any, phase: Any) -> Window:
    return _checked(str, step), _checked(str, phase)
