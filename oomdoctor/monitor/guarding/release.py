"""Frees what a failed block still holds: the frames of its traceback, and names that it bound."""

from __future__ import annotations

import ctypes
import gc
import traceback
from types import FrameType, FunctionType, ModuleType
from typing import Any

from oomdoctor.monitor.pinned import drop_copies, is_copied

_PLAIN = (int, float, complex, str, bytes, type(None), type, FunctionType, ModuleType)


def bound_names(frame: FrameType) -> dict[str, int]:
    """The local names of a running frame, with the identity of what each one is bound to."""
    values = frame.f_locals
    found = {name: id(value) for name, value in values.items()}
    drop_copies(frame, values)
    return found


def release(error: BaseException, frame: FrameType | None, before: dict[str, int]) -> None:
    """Drop what the frames of an exception hold, and what `frame` has bound since `before`.

    Frames that have ended are cleared. The frame that holds the `with` block still runs: names that
    were bound to something else in the block become None, unless that is a number or text.
    """
    seen: set[int] = set()
    waiting: list[BaseException | None] = [error]
    while waiting:
        one = waiting.pop()
        if one is None or id(one) in seen:
            continue
        seen.add(id(one))
        waiting += [one.__context__, one.__cause__]
        traceback.clear_frames(one.__traceback__)
        one.__traceback__ = None
    if frame is not None:
        _unbind(frame, before)
    gc.collect()


def _unbind(frame: FrameType, before: dict[str, int]) -> None:
    values: Any = frame.f_locals
    new = [
        name
        for name, value in values.items()
        if before.get(name) != id(value) and not isinstance(value, _PLAIN)
    ]
    for name in new:
        values[name] = None
    if is_copied(frame):
        to_fast = ctypes.pythonapi.PyFrame_LocalsToFast
        to_fast(ctypes.py_object(frame), ctypes.c_int(0))
    drop_copies(frame, values)
