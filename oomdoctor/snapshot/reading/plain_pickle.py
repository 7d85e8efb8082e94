"""Read a pickle of plain data, piece by piece, and refuse every other one.

A pickle is a program for a small stack machine, and some of its instructions import and call
whatever they name. This machine has no such instruction: it knows numbers, texts, lists, tuples
and dictionaries. Lengths are checked against the file before anything is made, nothing recurses,
and lists are handed to a consumer as they grow, so that millions of events are never alive as
dictionaries at once.

The instructions are those of CPython's pickletools.py, protocols 0 to 5.
"""

from __future__ import annotations

import re
import struct
from collections.abc import Callable
from mmap import ACCESS_READ, mmap
from pathlib import Path
from typing import Any

from oomdoctor.snapshot.reading.events import Traces
from oomdoctor.snapshot.reading.instructions import INSTRUCTIONS, Machine, PickleError

# A list of things that were there before, such as the frames of a stack: MARK, then BINGET or
# LONG_BINGET for each, then APPENDS. The same bytes always mean the same things.
_KNOWN_THINGS = re.compile(rb"\((?:h[\s\S]|j[\s\S]{4})+e")
_BETWEEN_PROGRESS = 4 << 20  # bytes
_MOST_CONTAINERS = 20_000_000  # alive at once, each of about 100 bytes
_KEYS = frozenset((str, int))


def load(path: Path, consumer: Traces, progress: Callable[[float], None] | None = None) -> Any:
    """The value in a file; `progress` gets the share that was read, now and then.

    Raises:
        OSError: the file cannot be read.
        PickleError: it holds anything but plain data, or is cut off.
    """
    with path.open("rb") as file:
        try:
            data = mmap(file.fileno(), 0, access=ACCESS_READ)
        except ValueError:
            raise PickleError("the file is empty") from None
        with data:
            return loads(data, consumer, progress)


def loads(
    data: bytes | mmap, consumer: Traces, progress: Callable[[float], None] | None = None
) -> Any:
    """As `load`, of bytes."""
    machine = Machine(data)
    try:
        return _run(machine, consumer, progress or (lambda _: None))
    except (IndexError, struct.error):
        raise PickleError(f"it is cut off or damaged at byte {machine.at:,}") from None
    except (TypeError, ValueError, OverflowError, AttributeError) as error:
        raise PickleError(f"it is damaged at byte {machine.at:,}: {error}") from None


def _run(machine: Machine, consumer: Traces, progress: Callable[[float], None]) -> Any:
    data, stack, memo, marks = machine.data, machine.stack, machine.memo, machine.marks
    size, told, containers = len(data), 0, 0
    lists: dict[bytes, tuple[Any, ...]] = {}
    at = 0  # the machine's own is set before anything can fail that names it
    while True:
        machine.at = at
        code = data[at]
        at += 1
        # Most of a snapshot is made of these; the others have a function each.
        if code == 0x68:  # BINGET
            stack.append(memo[data[at]])
            at += 1
        elif code == 0x94:  # MEMOIZE
            memo.append(stack[-1])
        elif code == 0x4A:  # BININT
            stack.append(int.from_bytes(data[at : at + 4], "little", signed=True))
            at += 4
        elif code == 0x8A:  # LONG1
            end = at + 1 + data[at]
            stack.append(int.from_bytes(data[at + 1 : end], "little", signed=True))
            at = end
        elif code == 0x4B:  # BININT1
            stack.append(data[at])
            at += 1
        elif code == 0x4D:  # BININT2
            stack.append(int.from_bytes(data[at : at + 2], "little"))
            at += 2
        elif code == 0x6A:  # LONG_BINGET
            stack.append(memo[int.from_bytes(data[at : at + 4], "little")])
            at += 4
        elif code == 0x28:  # MARK
            top = stack[-1] if stack else None
            if type(top) is list and not top and (run := _KNOWN_THINGS.match(data, at - 1)):
                at = run.end()
                parts = lists.get(run[0])
                if parts is None:
                    containers -= consumer.extend(top, _things(run[0], memo), memo)
                    lists[run[0]] = tuple(top)
                else:
                    top += parts
                continue
            marks.append(len(stack))
            if at - told > _BETWEEN_PROGRESS:
                told = at
                progress(at / size)
        elif code == 0x75:  # SETITEMS
            items = machine.popped()
            target = stack[-1]
            if type(target) is not dict or not _KEYS.issuperset(map(type, items[::2])):
                raise PickleError(f"it is no snapshot: byte {at:,} has a key of another type")
            target.update(zip(items[::2], items[1::2], strict=True))
        elif code in (0x65, 0x61):  # APPENDS, APPEND
            items = machine.popped() if code == 0x65 else [stack.pop()]
            target = stack[-1]
            if type(target) is not list:
                raise TypeError("a list is expected")
            containers -= consumer.extend(target, items, memo)
        elif code in (0x7D, 0x5D):  # EMPTY_DICT, EMPTY_LIST
            stack.append({} if code == 0x7D else [])
            containers += 1
            if containers > _MOST_CONTAINERS:
                raise PickleError("it holds too many objects to be a snapshot")
        elif code == 0x2E:  # STOP
            if len(stack) != 1 or marks:
                raise PickleError("it does not hold exactly one value")
            return stack[0]
        elif code in INSTRUCTIONS:
            machine.at = at
            machine.run(code)
            at = machine.at
        else:
            raise PickleError(f"it is no pickle: byte {at - 1:,} has no meaning")
        if at > size:
            raise IndexError


def _things(run: bytes, memo: list[Any]) -> list[Any]:
    """What a match of `_KNOWN_THINGS` refers to."""
    things, at, end = [], 1, len(run) - 1
    while at < end:
        size = 1 if run[at] == 0x68 else 4
        things.append(memo[int.from_bytes(run[at + 1 : at + 1 + size], "little")])
        at += 1 + size
    return things
