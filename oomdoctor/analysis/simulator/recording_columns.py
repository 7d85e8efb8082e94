"""A recording as columns of plain values, and back.

Each text, each unit and each cost is there once. A value that does not fit is a `ValueError`, a
`TypeError` or a `LookupError`.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import astuple
from itertools import count
from typing import Any, TypeVar

from oomdoctor.analysis.simulator.card import RowSum
from oomdoctor.analysis.simulator.recorded import Cost, Recorded
from oomdoctor.analysis.simulator.tape import Region, Tape, TapeBlock
from oomdoctor.records.job.costs import Filter, OpCost

T = TypeVar("T")
Mark = tuple[int, str, str]  # a window of a tape


def _table() -> dict[Any, int]:
    """A table of values: each gets the next number where it is first asked for."""
    return defaultdict(count().__next__)


def head_columns(recorded: Recorded) -> dict[str, Any]:
    """What is needed of every recording."""
    return {
        "size": recorded.size,
        "windows": recorded.windows,
        "alike": sorted(recorded.alike),
        "attention": sorted(recorded.attention_operators),
        "managed": recorded.managed_bytes,
    }


def read_head(columns: dict[str, Any]) -> dict[str, Any]:
    """The head, with values of the types that `Recorded` has; its windows are beside them."""
    return {
        "size": checked(int, columns["size"]),
        "windows": _marks(columns["windows"]),
        "alike": {(checked(int, major), checked(int, minor)) for major, minor in columns["alike"]},
        "attention_operators": {checked(str, name) for name in columns["attention"]},
        "managed_bytes": checked(int, columns["managed"]),
    }


def tape_columns(recorded: Recorded) -> dict[str, Any]:
    """The tape without its windows, what was taken, and the tape of two micro-steps."""
    other = recorded.accumulated
    return {
        **_columns_of(recorded.tape),
        "taken": list(recorded.taken.items()),
        "accumulated": other and {**_columns_of(other), "windows": other.windows},
    }


def _columns_of(tape: Tape) -> dict[str, Any]:
    texts, regions = _table(), _table()
    blocks = tape.blocks
    return {
        "blocks": [
            [block.size for block in blocks],
            [texts[block.category] for block in blocks],
            [texts[block.operator] for block in blocks],
            [texts[block.module] for block in blocks],
            [regions[block.region] for block in blocks],
            _few(block.rows and [block.rows, block.segments] for block in blocks),
            _few(block.row_sum and [*map(int, block.row_sum)] for block in blocks),
            _few(block.stream for block in blocks),
        ],
        "events": tape.events,
        "carried": list(tape.carried.items()),
        "regions": [regions[region] for region in tape.regions],
        "texts": list(texts),
        "units": list(regions),
    }


def _few(values: Iterable[Any]) -> dict[str, Any]:
    """The values that few blocks have, by the number of the block."""
    return {str(number): value for number, value in enumerate(values) if value}


def read_tape(
    columns: dict[str, Any], windows: list[Mark]
) -> tuple[Tape, dict[int, int], Tape | None]:
    """The tape with these windows, what was taken, and the tape of two micro-steps."""
    other = columns["accumulated"]
    taken = {checked(int, block): checked(int, event) for block, event in columns["taken"]}
    accumulated = None if other is None else _tape_of(other, _marks(other["windows"]))
    return _tape_of(columns, windows), taken, accumulated


def _marks(windows: Any) -> list[Mark]:
    return [
        (checked(int, start), checked(str, step), checked(str, phase))
        for start, step, phase in windows
    ]


def _tape_of(columns: dict[str, Any], windows: list[Mark]) -> Tape:
    texts = [checked(str, text) for text in columns["texts"]]
    units = [_region(region) for region in columns["units"]]
    sizes, categories, names, modules, places, rows, sums, streams = columns["blocks"]
    values = (
        _whole(sizes),
        _named(categories, texts),
        _named(names, texts),
        _named(modules, texts),
        _named(places, units),
    )
    blocks = [TapeBlock(*block) for block in zip(*values, strict=True)]
    for number, (own, segments) in rows.items():
        blocks[int(number)].rows = checked(int, own)
        blocks[int(number)].segments = checked(int, segments)
    for number, row_sum in sums.items():
        results, terms, vector, item, partial, semaphores = _whole(row_sum)
        summed = RowSum(results, terms, vector, item, partial, bool(semaphores))
        blocks[int(number)].row_sum = summed
    for number, stream in streams.items():
        blocks[int(number)].stream = checked(int, stream)
    events = _whole(columns["events"], signed=True)
    if 0 in events or (events and not -len(blocks) <= min(events) <= max(events) <= len(blocks)):
        raise ValueError("an event of a block that does not exist")
    of_events = _named(columns["regions"], units)
    if len(of_events) != len(events):
        raise ValueError("events without a unit")
    carried = {checked(int, start): checked(int, left) for start, left in columns["carried"]}
    if not all(0 <= number < len(blocks) for pair in carried.items() for number in pair):
        raise ValueError("a block that does not exist is carried over")
    return Tape(blocks, events, of_events, windows, carried)


def cost_columns(recorded: Recorded) -> dict[str, Any]:
    """The costs."""
    regions, operators = _table(), _table()

    def columns(costs: Sequence[Cost]) -> list[list[int]]:
        return [
            [regions[cost.region] for cost in costs],
            [cost.window for cost in costs],
            [operators[cost.cost] for cost in costs],
        ]

    return {
        "costs": columns(recorded.costs),
        "adding": columns(recorded.adding),
        "units": list(regions),
        "operators": [astuple(operator) for operator in operators],
    }


def read_costs(columns: dict[str, Any], windows: list[Mark]) -> tuple[list[Cost], list[Cost]]:
    """The costs of a micro-step, and those of adding the gradients of another one."""
    units = [_region(region) for region in columns["units"]]
    operators = [_op_cost(*cost) for cost in columns["operators"]]

    def costs(name: str) -> list[Cost]:
        regions, phases, kinds = columns[name]
        _named(phases, windows)
        values = zip(_named(regions, units), phases, _named(kinds, operators), strict=True)
        return list(map(Cost._make, values))

    return costs("costs"), costs("adding")


def checked(kind: type[T], value: Any) -> T:
    """The value, if it is of exactly this type.

    Raises:
        ValueError: it is not.
    """
    if type(value) is not kind:
        raise ValueError(f"expected {kind.__name__}, got {type(value).__name__}")
    return value


def _whole(column: Any, *, signed: bool = False) -> list[int]:
    if type(column) is not list or set(map(type, column)) - {int}:
        raise ValueError("a column is not of whole numbers")
    if not signed and column and min(column) < 0:
        raise ValueError("a column has negative numbers")
    return column


def _named(column: Any, table: Sequence[T]) -> list[T]:
    """What a column of positions in a table stands for."""
    if (places := _whole(column)) and max(places) >= len(table):
        raise ValueError("a position outside its table")
    return list(map(table.__getitem__, places))


def _region(value: Any) -> Region | None:
    if value is None:
        return None
    stack, unit = value
    return checked(int, stack), checked(int, unit)


def _op_cost(
    name: Any,
    kind: Any,
    dtype: Any,
    flops: Any,
    moved: Any,
    unpacked_bytes: Any,
    shape: Any,
    relaid_bytes: Any = 0.0,
    filter_: Any = None,
) -> OpCost:
    return OpCost(
        checked(str, name),
        checked(str, kind),  # type: ignore[arg-type]
        checked(str, dtype),
        checked(float, flops),
        checked(float, moved),
        checked(float, unpacked_bytes),
        tuple(_whole(shape)),
        checked(float, relaid_bytes),
        None if filter_ is None else _filter(*filter_),
    )


def _filter(
    taps: Any, is_square: Any, stride: Any, width: Any, places: Any, channels_last: Any
) -> Filter:
    return Filter(
        checked(int, taps),
        checked(bool, is_square),
        checked(int, stride),
        checked(int, width),
        checked(int, places),
        checked(bool, channels_last),
    )
