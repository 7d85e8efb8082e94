"""The rarer instructions of a pickle that make plain data, and the names of those that do not."""

from __future__ import annotations

import struct
from collections.abc import Callable
from mmap import mmap
from typing import Any

_LONGEST_NUMBER = 64  # bytes, or digits; addresses, sizes and times have fewer


class PickleError(Exception):
    """The bytes are not a pickle of plain data; the message says why, about "it"."""


class Machine:
    """The stack of a pickle, its marks, its memo, and the place in the file."""

    def __init__(self, data: bytes | mmap) -> None:
        self.data = data
        self.at = 0
        self.stack: list[Any] = []
        self.marks: list[int] = []
        self.memo: list[Any] = []

    def popped(self) -> list[Any]:
        """What lies above the last mark."""
        mark = self.marks.pop()
        items = self.stack[mark:]
        del self.stack[mark:]
        return items

    def take(self, size: int) -> bytes:
        """The next bytes.

        Raises:
            IndexError: there are fewer.
        """
        if size < 0 or size > len(self.data) - self.at:
            raise IndexError
        self.at += size
        return self.data[self.at - size : self.at]

    def number(self, size: int) -> int:
        """The next bytes as a number without a sign."""
        return int.from_bytes(self.take(size), "little")

    def line(self) -> bytes:
        """The text until the end of the line (protocol 0)."""
        end = self.data.find(b"\n", self.at)
        if end < 0:
            raise IndexError
        text = self.take(end - self.at)
        self.at += 1
        return text


def _text(size: int) -> Callable[[Machine], None]:
    def push(machine: Machine) -> None:
        text = machine.take(machine.number(size))
        machine.stack.append(text.decode("utf-8", "surrogatepass"))

    return push


def _bytes(size: int) -> Callable[[Machine], None]:
    return lambda machine: machine.stack.append(machine.take(machine.number(size)))


def _constant(value: Any) -> Callable[[Machine], None]:
    return lambda machine: machine.stack.append(value)


def _tuple(size: int) -> Callable[[Machine], None]:
    def push(machine: Machine) -> None:
        if size > len(machine.stack):
            raise IndexError
        at = len(machine.stack) - size
        machine.stack[at:] = [tuple(machine.stack[at:])]

    return push


def _put(machine: Machine, index: int) -> None:
    memo = machine.memo
    if index > len(memo):
        raise PickleError("it is no snapshot: its memo has gaps")
    memo[index : index + 1] = [machine.stack[-1]]


def _long4(machine: Machine) -> None:
    size = machine.number(4)
    if size > _LONGEST_NUMBER:
        raise PickleError(f"it is no snapshot: it has a number of {size:,} bytes")
    machine.stack.append(int.from_bytes(machine.take(size), "little", signed=True))


def _decimal(machine: Machine) -> None:
    text = machine.line()
    if text in (b"00", b"01"):  # how protocol 0 writes False and True
        machine.stack.append(text == b"01")
        return
    if len(text) > _LONGEST_NUMBER:
        raise PickleError(f"it is no snapshot: it has a number of {len(text):,} digits")
    machine.stack.append(int(text.removesuffix(b"L")))


def _index(machine: Machine) -> int:
    text = machine.line()
    if not text.isdigit() or len(text) > _LONGEST_NUMBER:
        raise IndexError
    return int(text)


def _set_item(machine: Machine) -> None:
    value, key, target = machine.stack.pop(), machine.stack.pop(), machine.stack[-1]
    if type(target) is not dict or type(key) not in (str, int):
        raise TypeError("a dictionary with a text or a number as key is expected")
    target[key] = value


def _dict(machine: Machine) -> None:
    items = machine.popped()
    if not {str, int}.issuperset(map(type, items[::2])):
        raise TypeError("a dictionary with texts or numbers as keys is expected")
    machine.stack.append(dict(zip(items[::2], items[1::2], strict=True)))


def _global(machine: Machine) -> None:
    _import(machine.line(), machine.line())


def _stack_global(machine: Machine) -> None:
    module, name = machine.stack[-2:]
    _import(module, name)


def _import(module: object, name: object) -> None:
    _refuse(f"wants to import {_shown(module)}.{_shown(name)}")


def _foreign(what: str) -> Callable[[Machine], None]:
    return lambda _: _refuse(what)


def _refuse(what: str) -> None:
    raise PickleError(f"it is no snapshot: it {what}; nothing of it was run")


def _shown(text: object) -> str:
    words = text.decode("utf-8", "replace") if isinstance(text, bytes) else text
    return ascii(words if isinstance(words, str) else "?")[1:-1][:80]


INSTRUCTIONS: dict[int, Callable[[Machine], object]] = {
    0x80: lambda machine: machine.take(1),  # PROTO
    0x95: lambda machine: machine.take(8),  # FRAME
    0x4E: _constant(None),
    0x88: _constant(True),
    0x89: _constant(False),
    0x49: _decimal,  # INT
    0x4C: _decimal,  # LONG
    0x8B: _long4,
    0x46: lambda machine: machine.stack.append(float(machine.line())),  # FLOAT
    0x47: lambda machine: machine.stack.append(struct.unpack(">d", machine.take(8))[0]),
    0x56: lambda machine: machine.stack.append(machine.line().decode("raw-unicode-escape")),
    0x8C: _text(1),
    0x58: _text(4),
    0x8D: _text(8),
    0x43: _bytes(1),
    0x42: _bytes(4),
    0x8E: _bytes(8),
    0x29: _constant(()),
    0x85: _tuple(1),
    0x86: _tuple(2),
    0x87: _tuple(3),
    0x74: lambda machine: machine.stack.append(tuple(machine.popped())),  # TUPLE
    0x6C: lambda machine: machine.stack.append(machine.popped()),  # LIST
    0x64: _dict,
    0x73: _set_item,
    0x30: lambda machine: machine.stack.pop(),  # POP
    0x31: lambda machine: machine.popped(),  # POP_MARK
    0x32: lambda machine: machine.stack.append(machine.stack[-1]),  # DUP
    0x67: lambda machine: machine.stack.append(machine.memo[_index(machine)]),  # GET
    0x70: lambda machine: _put(machine, _index(machine)),  # PUT
    0x71: lambda machine: _put(machine, machine.number(1)),  # BINPUT
    0x72: lambda machine: _put(machine, machine.number(4)),  # LONG_BINPUT
    # What only other pickles have.
    0x63: _global,
    0x93: _stack_global,
    **dict.fromkeys((0x52, 0x69, 0x6F, 0x81, 0x92), _foreign("wants to call something")),
    0x62: _foreign("wants to change an object"),
    **dict.fromkeys((0x50, 0x51, 0x82, 0x83, 0x84, 0x97, 0x98), _foreign("refers to other data")),
    **dict.fromkeys((0x53, 0x54, 0x55, 0x8F, 0x90, 0x91, 0x96), _foreign("holds other types")),
}
