"""Reads of values that no kernel computed: where they are, and what they give.

They give zeros. In a second run of the command they give what sends a branch the other way, where
the command was found to branch by them. A loop that waits for such a value would never end, so
after many turns without an optimizer step, its reads give one number after the other.
"""

from __future__ import annotations

import ast
import ctypes
import linecache
import struct
import sys
from collections.abc import Iterator, Mapping
from contextlib import suppress
from itertools import islice
from types import CodeType, FrameType
from typing import Any

from oomdoctor.analysis.own_code import place_of
from oomdoctor.monitor.inside.ending import script_file
from oomdoctor.monitor.inside.process_facts import TIMED, emulated_device, is_own_here, named_in

# What a read gives, by the device's number for it, and how many bytes are more than a few of them.
# More of them are data: they are kept or saved, or select elements.
_READS = (("number", 64), ("truth", 64), ("integer", 16384), ("size", 1 << 40))
_MADE_UP = 2  # the worth of a value that was chosen as a training might have it; below it is none
_MOST_LINES = 200
_MOST_FRAMES = 80
_TURNS = 32  # of a loop that a second run enters
_EARLY = 8  # turns after which a loop holds all that it needs, if it keeps nothing
_ENDLESS = 256  # reads at one place without a step: a loop may be waiting
# Which numbers are tried, beside those next to what the command compares with.
_NUMBERS = (100.0, -100.0, 0.5, 1.0, -1.0, 1e4, -1e4)
_BFLOAT16 = b"r"

# The user's line, the innermost one, which may be a library's, the operator, what it gave and
# whether even a share of it is unknown: how often.
_Read = tuple[str, int, str, int, str, str, bool]
_counts: dict[_Read, int] = {}
_kept: list[Any] = []  # the callback must live as long as the device
_branches: dict[str, list[dict[str, Any]]] = {}
_code: dict[str, CodeType] = {}
_since_step: dict[tuple[str, int], int] = {}
_turns: dict[tuple[str, int], int] = {}
_first: dict[tuple[str, int], int] = {}  # bytes that are allocated at the first read of a step
_grown: set[tuple[str, int]] = set()  # lines that read again in a step with more allocated
_early: dict[tuple[str, int], int] = {}  # bytes that are allocated after some turns
_ended: dict[tuple[str, int], tuple[int, bool]] = {}  # after how many turns; whether memory grew
_loops: dict[tuple[str, int], bool] = {}


def note_reads(branches: Mapping[str, list[dict[str, Any]]] | None = None) -> None:
    """Ask the emulated device to call us at each read of an unknown value.

    `branches` says what a read at a line of code (`FILE:LINE`, see `place_of`) is compared with,
    and how that should come out.
    """
    _branches.update(branches or {})
    device = emulated_device()
    if device is not None:
        at, size, number = ctypes.c_uint64, ctypes.c_size_t, ctypes.c_int
        kind = ctypes.CFUNCTYPE(
            None, at, size, number, ctypes.c_char_p, number, number, ctypes.c_void_p
        )
        callback = kind(_on_read)
        device.emu_values_set_hook(callback)
        _kept.append(callback)


def new_step() -> None:
    """An optimizer step has ended, or a backward pass without one."""
    _since_step.clear()


def files() -> set[str]:
    """The files that values were read in, a library's too."""
    return {read[2] for read in _counts}


def unknown_reads() -> list[dict[str, str | int | bool]]:
    """The reads of unknown values, the most frequent first."""
    names = ("file", "line", "inner_file", "inner_line", "operator", "read", "open")
    most_first = sorted(_counts.items(), key=lambda item: -item[1])
    return [
        {
            **dict(zip(names, read, strict=True)),
            "count": count,
            "grows": (read[2], read[3]) in _grown,
        }
        for read, count in most_first
    ]


def ended_loops() -> list[dict[str, str | int | bool]]:
    """The user's lines whose loop was ended, after how many turns, and whether memory grew."""
    return [
        {"file": file, "line": line, "turns": turns, "grows": grows}
        for (file, line), (turns, grows) in _ended.items()
    ]


def _on_read(
    address: int, size: int, worth: int, operator: bytes | None, read: int, kind: int, to: int
) -> None:
    with suppress(Exception):
        word, most = _READS[read]
        few = size <= most
        user, inner = _places()
        if user is None:
            if word != "size":
                return
            user = inner
        is_open = worth < _MADE_UP
        named = word if few else f"{word}s"
        place = (*user, *inner, (operator or b"").decode(), named, is_open)
        if place in _counts or len(_counts) < _MOST_LINES:
            _counts[place] = _counts.get(place, 0) + 1
        if is_open and few and kind and word != "size":
            _answer(user, inner, size, bytes([kind]), to)


def _answer(user: tuple[str, int], inner: tuple[str, int], size: int, kind: bytes, to: int) -> None:
    """Write another value than zero, if the read is one of those of this module's first lines."""
    asked = _branches.get(place_of(*inner), [])
    again = _since_step[inner] = _since_step.get(inner, 0) + 1
    if again <= _EARLY:
        _early[inner] = _allocated()
        if again == 1:
            _first[inner] = _early[inner]
        elif _early[inner] > _first.get(inner, _early[inner]):
            _grown.add(inner)
    if not asked and again <= _ENDLESS:
        return
    was = _unpacked(kind, ctypes.string_at(to, size))
    if again > _ENDLESS:
        if not _loops.setdefault(inner, _is_in_loop()):
            return
        _note_end(user, inner, _ENDLESS)
        new: float = not was if kind == b"?" else _NUMBERS[again % len(_NUMBERS)]
    else:
        new = _best(asked, was, kind == b"?", user, inner)
    if new != was:
        packed = _packed(kind, new)
        ctypes.memmove(to, packed * (size // len(packed)), size)


def _note_end(user: tuple[str, int], inner: tuple[str, int], turns: int) -> None:
    if user not in _ended:
        _ended[user] = turns, _allocated() > _early.get(inner, _allocated())


def _allocated() -> int:
    import torch

    return int(sum(map(torch.cuda.memory_allocated, range(torch.cuda.device_count()))))


def _is_in_loop() -> bool:
    """Whether a line of the user's, or what calls its function, is in a loop that may not end."""
    script = script_file()
    own = (each for each in _frames(2) if is_own_here(each.f_code.co_filename, script))
    for frame in islice(own, 2):
        file, line = frame.f_code.co_filename, frame.f_lineno
        tree = ast.parse("".join(linecache.getlines(file)))
        loops = [node for node in ast.walk(tree) if isinstance(node, ast.For | ast.While)]
        around = [loop for loop in loops if loop.lineno <= line <= (loop.end_lineno or 0)]
        first = frame.f_code.co_firstlineno if frame.f_code.co_name != "<module>" else 0
        around = [loop for loop in around if loop.lineno >= first]
        if around:
            return isinstance(max(around, key=lambda loop: loop.lineno), ast.While)
    return False


def _best(
    asked: list[dict[str, Any]],
    was: float,
    is_truth: bool,
    user: tuple[str, int],
    inner: tuple[str, int],
) -> float:
    """The value for which most comparisons come out as they should, zero if it is one of these."""
    wishes = [each["wanted"] for each in asked]
    if any(each["word"] == "while" for each in asked):
        turns = _turns[inner] = _turns.get(inner, 0) + 1
        if turns > _TURNS:
            _turns[inner] = 0
            _note_end(user, inner, _TURNS)
            wishes = [
                not wish if each["word"] == "while" else wish
                for each, wish in zip(asked, wishes, strict=True)
            ]
    if is_truth:
        return wishes[0] if wishes[0] is not None else not was
    compared = [(each, wish, _others(each)) for each, wish in zip(asked, wishes, strict=True)]
    limits = [n for each, _, others in compared for n in (*others, *_constants(each["expression"]))]
    near = (limit + by for limit in limits for by in (1, -1, 0))

    def kept(number: float) -> int:
        return sum(_outcome(*each, number, was) for each in compared)

    return max((was, *near, *_NUMBERS), key=kept)


def _outcome(
    each: dict[str, Any], wish: bool | None, others: tuple[float, ...], number: float, was: float
) -> bool:
    """Whether a test comes out as it should; if nothing says how, otherwise than for `was`."""
    code = _compiled(each["expression"])

    def is_true(value: float) -> bool:
        names = {f"_{at}": other for at, other in enumerate(others)} | {"_number": value}
        return bool(eval(code, {"__builtins__": {"abs": abs, "float": float}}, names))

    with suppress(Exception):
        return is_true(number) == (not is_true(was) if wish is None else wish)
    return False


def _compiled(expression: str) -> CodeType:
    if expression not in _code:
        _code[expression] = compile(expression, "", "eval")
    return _code[expression]


def _constants(expression: str) -> list[float]:
    return [float(c) for c in _compiled(expression).co_consts if isinstance(c, (int, float))]


def _others(each: dict[str, Any]) -> tuple[float, ...]:
    """The numbers that the value is compared with; 1 for what is not a number here."""
    frame = _frame_in(each["file"])
    values = (None if frame is None else named_in(frame, name) for name in each["others"])
    return tuple(float(v) if isinstance(v, (int, float)) else 1.0 for v in values)


def _frame_in(file: str) -> FrameType | None:
    for frame in _frames(2):
        if place_of(frame.f_code.co_filename, 0) == file:
            return frame
    return None


def _unpacked(kind: bytes, data: bytes) -> float:
    if kind == _BFLOAT16:
        return float(struct.unpack("<f", b"\0\0" + data[:2])[0])
    text = f"<{kind.decode()}"
    return struct.unpack(text, data[: struct.calcsize(text)])[0]  # type: ignore[no-any-return]


def _packed(kind: bytes, value: float) -> bytes:
    if kind == _BFLOAT16:
        return struct.pack("<f", value)[2:]
    return struct.pack(f"<{kind.decode()}", value if kind in b"fde?" else round(value))


def _frames(depth: int) -> Iterator[FrameType]:
    """The innermost frames that are not ours."""
    try:
        frame: FrameType | None = sys._getframe(depth)
    except ValueError:
        return
    for _ in range(_MOST_FRAMES):
        if frame is None:
            return
        if frame.f_code.co_filename != __file__:
            yield frame
        frame = frame.f_back


def _places() -> tuple[tuple[str, int] | None, tuple[str, int]]:
    """The user's line that runs now, and the innermost line; none of the user's in a thread.

    Where a program of a package runs no line of the user's, the innermost stands for it. The rest
    of a cell that begins with %%time is code without a name, one line below its own.
    """
    script, timed = script_file(), 0
    innermost: tuple[str, int] | None = None
    inner: tuple[str, int] | None = None
    for frame in _frames(2):
        file = frame.f_code.co_filename
        if file == TIMED:
            timed = timed or frame.f_lineno + 1
            continue
        if timed and is_own_here(file, script):
            return (file, timed), inner or (file, timed)
        inner = inner or (None if timed else (file, frame.f_lineno))
        if innermost is None and not file.startswith("<"):  # code that a library made has no file
            innermost = file, frame.f_lineno
        if is_own_here(file, script):
            return (file, frame.f_lineno), inner or (file, frame.f_lineno)
        if file == script:
            return innermost, inner or (file, frame.f_lineno)
    return None, inner or ("", 0)
