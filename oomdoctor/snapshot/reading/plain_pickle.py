"""Read a pickle of plain data, piece by piece, and refuse every other one.

A pickle is a program for a small stack machine, and some of its instructions import and call
whatever they name. This machine has no such instruction: it knows numbers, texts, lists, tuples
and dictionaries. Lengths are checked against the file before anything is made, nothing recurses,
and lists are handed to a consumer as they grow, so that millions of events are never alive as
dictionaries at once.

The instructions are those of CPython's pickletools.py, protocols 0 to 5, which reads what stands
behind the code of each.
"""

from __future__ import annotations

import pickletools
import re
import struct
from collections.abc import Callable
from io import BytesIO
from mmap import ACCESS_READ, mmap
from pathlib import Path
from typing import Any

from oomdoctor.snapshot.reading.events import Traces

# A list of things that were there before, such as the frames of a stack: MARK, then BINGET or
# LONG_BINGET for each, then APPENDS. The same bytes always mean the same things.
_KNOWN_THINGS = re.compile(rb"\((?:h[\s\S]|j[\s\S]{4})+e")
_BETWEEN_PROGRESS = 4 << 20  # bytes
_MOST_CONTAINERS = 20_000_000  # alive at once, each of about 100 bytes
_KEYS = frozenset((str, int))
_LONGEST_NUMBER = 64  # bytes; addresses, sizes and times have fewer


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
    machine = _Machine(data)
    try:
        return _run(machine, consumer, progress or (lambda _: None))
    except (IndexError, struct.error):
        raise PickleError(f"it is cut off or damaged at byte {machine.at:,}") from None
    except (TypeError, ValueError, OverflowError, AttributeError) as error:
        raise PickleError(f"it is damaged at byte {machine.at:,}: {error}") from None


def _run(machine: _Machine, consumer: Traces, progress: Callable[[float], None]) -> Any:
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
        elif code in _INSTRUCTIONS:
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


class PickleError(Exception):
    """The bytes are not a pickle of plain data; the message says why, about "it"."""


class _Machine:
    """The stack of a pickle, its marks, its memo, and the place in the file."""

    def __init__(self, data: bytes | mmap) -> None:
        self.data = data
        self.at = 0
        self.stack: list[Any] = []
        self.marks: list[int] = []
        self.memo: list[Any] = []
        self._file = data if isinstance(data, mmap) else BytesIO(data)

    def popped(self) -> list[Any]:
        """What lies above the last mark."""
        mark = self.marks.pop()
        items = self.stack[mark:]
        del self.stack[mark:]
        return items

    def run(self, code: int) -> None:
        """Run one of `_INSTRUCTIONS`, whose code was read, with what stands behind it.

        Raises:
            IndexError: there is too little behind it, or what it does not take.
        """
        argument = None
        if code in _READERS:
            self._file.seek(self.at)
            try:
                argument = _READERS[code](self._file)
            except ValueError:
                raise IndexError from None
            self.at = self._file.tell()
        _INSTRUCTIONS[code](self, argument)


_Instruction = Callable[[_Machine, Any], object]


def _push(machine: _Machine, value: Any) -> None:
    if type(value) is int and value.bit_length() > 8 * _LONGEST_NUMBER:
        size = -(-value.bit_length() // 8)
        raise PickleError(f"it is no snapshot: it has a number of {size:,} bytes")
    machine.stack.append(value)


def _constant(value: Any) -> _Instruction:
    return lambda machine, _: machine.stack.append(value)


def _tuple(size: int) -> _Instruction:
    def push(machine: _Machine, _: Any) -> None:
        if size > len(machine.stack):
            raise IndexError
        at = len(machine.stack) - size
        machine.stack[at:] = [tuple(machine.stack[at:])]

    return push


def _get(machine: _Machine, index: int) -> None:
    if index < 0:
        raise IndexError
    machine.stack.append(machine.memo[index])


def _put(machine: _Machine, index: int) -> None:
    memo = machine.memo
    if not 0 <= index <= len(memo):
        raise PickleError("it is no snapshot: its memo has gaps")
    memo[index : index + 1] = [machine.stack[-1]]


def _set_item(machine: _Machine, _: Any) -> None:
    value, key, target = machine.stack.pop(), machine.stack.pop(), machine.stack[-1]
    if type(target) is not dict or type(key) not in (str, int):
        raise TypeError("a dictionary with a text or a number as key is expected")
    target[key] = value


def _dict(machine: _Machine, _: Any) -> None:
    items = machine.popped()
    if not {str, int}.issuperset(map(type, items[::2])):
        raise TypeError("a dictionary with texts or numbers as keys is expected")
    machine.stack.append(dict(zip(items[::2], items[1::2], strict=True)))


def _import(machine: _Machine, names: tuple[bytes, bytes] | None) -> None:
    module, name = names or machine.stack[-2:]
    _refuse(f"wants to import {_shown(module)}.{_shown(name)}")


def _refuse(what: str) -> None:
    raise PickleError(f"it is no snapshot: it {what}; nothing of it was run")


def _refusing(what: str) -> _Instruction:
    return lambda *_: _refuse(what)


def _shown(text: object) -> str:
    words = text.decode("utf-8", "replace") if isinstance(text, bytes) else text
    return ascii(words if isinstance(words, str) else "?")[1:-1][:80]


_PUSHED = (
    *("INT", "LONG", "LONG4", "FLOAT", "BINFLOAT"),
    *("UNICODE", "SHORT_BINUNICODE", "BINUNICODE", "BINUNICODE8"),
    *("SHORT_BINBYTES", "BINBYTES", "BINBYTES8"),
)

_RUN: dict[str, _Instruction] = {
    **dict.fromkeys(("PROTO", "FRAME"), lambda *_: None),
    **dict.fromkeys(_PUSHED, _push),
    "NONE": _constant(None),
    "NEWTRUE": _constant(True),
    "NEWFALSE": _constant(False),
    "EMPTY_TUPLE": _constant(()),
    "TUPLE1": _tuple(1),
    "TUPLE2": _tuple(2),
    "TUPLE3": _tuple(3),
    "TUPLE": lambda machine, _: machine.stack.append(tuple(machine.popped())),
    "LIST": lambda machine, _: machine.stack.append(machine.popped()),
    "DICT": _dict,
    "SETITEM": _set_item,
    "POP": lambda machine, _: machine.stack.pop(),
    "POP_MARK": lambda machine, _: machine.popped(),
    "DUP": lambda machine, _: machine.stack.append(machine.stack[-1]),
    "GET": _get,
    **dict.fromkeys(("PUT", "BINPUT", "LONG_BINPUT"), _put),
    **dict.fromkeys(("GLOBAL", "STACK_GLOBAL"), _import),
}

# What only other pickles have.
_CALLS = ("REDUCE", "INST", "OBJ", "NEWOBJ", "NEWOBJ_EX")

_REFERS = ("PERSID", "BINPERSID", "EXT1", "EXT2", "EXT4", "NEXT_BUFFER", "READONLY_BUFFER")

_STRINGS = ("STRING", "BINSTRING", "SHORT_BINSTRING", "BYTEARRAY8")

_SETS = ("EMPTY_SET", "ADDITEMS", "FROZENSET")

_REFUSED = {
    **dict.fromkeys(_CALLS, "wants to call something"),
    "BUILD": "wants to change an object",
    **dict.fromkeys(_REFERS, "refers to other data"),
    **dict.fromkeys((*_STRINGS, *_SETS), "holds other types"),
}

_INSTRUCTIONS: dict[int, _Instruction] = {
    ord(opcode.code): _RUN[opcode.name] if opcode.name in _RUN else _refusing(_REFUSED[opcode.name])
    for opcode in pickletools.opcodes
    if opcode.name in (*_RUN, *_REFUSED)
}

_READERS: dict[int, Callable[[Any], Any]] = {
    ord(opcode.code): opcode.arg.reader
    for opcode in pickletools.opcodes
    if opcode.name in _RUN and opcode.arg is not None
}

# Names of classes may have any letters, which pickletools does not read.
_READERS[ord("c")] = lambda file: (file.readline()[:-1], file.readline()[:-1])
