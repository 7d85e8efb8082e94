"""The rarer instructions of a pickle that make plain data, and the names of those that do not.

Python's `pickletools` names all instructions and reads what stands behind the code of each.
"""

from __future__ import annotations

import pickletools
from collections.abc import Callable
from io import BytesIO
from mmap import mmap
from typing import Any

_LONGEST_NUMBER = 64  # bytes; addresses, sizes and times have fewer


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
        self._file = data if isinstance(data, mmap) else BytesIO(data)

    def popped(self) -> list[Any]:
        """What lies above the last mark."""
        mark = self.marks.pop()
        items = self.stack[mark:]
        del self.stack[mark:]
        return items

    def run(self, code: int) -> None:
        """Run one of `INSTRUCTIONS`, whose code was read, with what stands behind it.

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
        INSTRUCTIONS[code](self, argument)


Instruction = Callable[[Machine, Any], object]


def _push(machine: Machine, value: Any) -> None:
    if type(value) is int and value.bit_length() > 8 * _LONGEST_NUMBER:
        size = -(-value.bit_length() // 8)
        raise PickleError(f"it is no snapshot: it has a number of {size:,} bytes")
    machine.stack.append(value)


def _constant(value: Any) -> Instruction:
    return lambda machine, _: machine.stack.append(value)


def _tuple(size: int) -> Instruction:
    def push(machine: Machine, _: Any) -> None:
        if size > len(machine.stack):
            raise IndexError
        at = len(machine.stack) - size
        machine.stack[at:] = [tuple(machine.stack[at:])]

    return push


def _get(machine: Machine, index: int) -> None:
    if index < 0:
        raise IndexError
    machine.stack.append(machine.memo[index])


def _put(machine: Machine, index: int) -> None:
    memo = machine.memo
    if not 0 <= index <= len(memo):
        raise PickleError("it is no snapshot: its memo has gaps")
    memo[index : index + 1] = [machine.stack[-1]]


def _set_item(machine: Machine, _: Any) -> None:
    value, key, target = machine.stack.pop(), machine.stack.pop(), machine.stack[-1]
    if type(target) is not dict or type(key) not in (str, int):
        raise TypeError("a dictionary with a text or a number as key is expected")
    target[key] = value


def _dict(machine: Machine, _: Any) -> None:
    items = machine.popped()
    if not {str, int}.issuperset(map(type, items[::2])):
        raise TypeError("a dictionary with texts or numbers as keys is expected")
    machine.stack.append(dict(zip(items[::2], items[1::2], strict=True)))


def _import(machine: Machine, names: tuple[bytes, bytes] | None) -> None:
    module, name = names or machine.stack[-2:]
    _refuse(f"wants to import {_shown(module)}.{_shown(name)}")


def _refuse(what: str) -> None:
    raise PickleError(f"it is no snapshot: it {what}; nothing of it was run")


def _refusing(what: str) -> Instruction:
    return lambda *_: _refuse(what)


def _shown(text: object) -> str:
    words = text.decode("utf-8", "replace") if isinstance(text, bytes) else text
    return ascii(words if isinstance(words, str) else "?")[1:-1][:80]


_PUSHED = (
    *("INT", "LONG", "LONG4", "FLOAT", "BINFLOAT"),
    *("UNICODE", "SHORT_BINUNICODE", "BINUNICODE", "BINUNICODE8"),
    *("SHORT_BINBYTES", "BINBYTES", "BINBYTES8"),
)
_RUN: dict[str, Instruction] = {
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
INSTRUCTIONS: dict[int, Instruction] = {
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
