"""The exception that says why memory ran out and what helps, as `oomdoctor explain` would.

What a failed block still holds is freed: the frames of its traceback, and names that it bound.
"""

from __future__ import annotations

import ctypes
import gc
import sys
import traceback
from functools import cache
from types import FrameType, FunctionType, ModuleType
from typing import Any

from oomdoctor.explain.diagnose import diagnose
from oomdoctor.explain.reading.parse import flatten, read_message
from oomdoctor.explain.reading.scan import scan
from oomdoctor.explain.remedies.wording import effect, typed
from oomdoctor.explain.training.known import Given
from oomdoctor.monitor.pinned import drop_copies, is_copied
from oomdoctor.records.report.diagnosis import Diagnosis

_REMEDIES = 4
_MOST_TEXT = 20_000
_PLAIN = (int, float, complex, str, bytes, type(None), type, FunctionType, ModuleType)


@cache
def diagnosed_type() -> Any:
    """The class DiagnosedOutOfMemoryError. torch is imported, because torch's is its base."""
    import torch

    base: Any = torch.OutOfMemoryError

    class DiagnosedOutOfMemoryError(base):  # type: ignore[misc]
        """GPU memory ran out; the message says why and what helps. `diagnosis` holds the facts."""

        diagnosis: Diagnosis | None = None

        def __init__(self, message: str, diagnosis: Diagnosis | None = None) -> None:
            super().__init__(message)
            self.diagnosis = diagnosis

    DiagnosedOutOfMemoryError.__module__ = "oomdoctor.monitor"
    DiagnosedOutOfMemoryError.__qualname__ = "DiagnosedOutOfMemoryError"
    return DiagnosedOutOfMemoryError


def diagnosis_of(error: BaseException) -> Diagnosis:
    """The diagnosis of an exception, from its message and its traceback."""
    lines = "".join(traceback.format_exception(error)).splitlines()
    return diagnose("this training", *scan(lines), Given())[0]


def diagnosed(error: BaseException, more: str = "") -> Any:
    """The exception to raise instead; `more` is added to its message."""
    try:
        diagnosis: Diagnosis | None = diagnosis_of(error)
    except Exception:  # noqa: BLE001 - the original error matters more than our words about it
        diagnosis = None
    parts = [str(error), text_of(diagnosis) if diagnosis is not None else "", more]
    return diagnosed_type()("\n\n".join(filter(None, parts)), diagnosis)


def text_of(diagnosis: Diagnosis) -> str:
    """A diagnosis in a few lines: what happened, what to do first, the cause, other remedies."""
    lines = [f"oomdoctor: {diagnosis.verdict}."]
    for number, remedy in enumerate(diagnosis.remedies[:_REMEDIES], 1):
        gives = effect(diagnosis, remedy)
        head = "Do this first: " if number == 1 else f"  {number}. "
        lines.append(f"{head}{remedy.change}" + (f": {gives}" if gives else ""))
        for line in typed(diagnosis, remedy).values():
            lines += [f"       {part}" for part in line.splitlines()]
        if number == 1:
            lines += [*_cause(diagnosis), *(["Other remedies:"] if diagnosis.remedies[1:] else [])]
    return "\n".join(lines if diagnosis.remedies else [*lines, *_cause(diagnosis)])


def _cause(diagnosis: Diagnosis) -> list[str]:
    if not diagnosis.causes:
        return []
    first = diagnosis.causes[0]
    what = first.cause.replace("_", " ") + (f", {first.detail}" if first.detail else "")
    why = f": {first.why}" if first.why else ""
    return [f"Cause: {what} ({first.confidence} confidence){why}"]


def is_out_of_memory(error: BaseException) -> bool:
    """Whether GPU memory ran out: by the type of torch, or by the message of a library below it.

    cuBLAS, cuDNN, NCCL, Triton and bitsandbytes raise a RuntimeError, which says so in words only.
    """
    kind = getattr(sys.modules.get("torch"), "OutOfMemoryError", None)
    if kind is not None and isinstance(error, kind):
        return True
    if not isinstance(error, RuntimeError):
        return False
    message = read_message(flatten(str(error)[:_MOST_TEXT]))
    return message is not None and message.resource == "gpu" and not message.dialect.hints_only


def bound_names(frame: FrameType) -> dict[str, int]:
    """The local names of a running frame, with the identity of what each one is bound to."""
    values = frame.f_locals
    numbers = {name: id(value) for name, value in values.items()}
    drop_copies(frame, values)
    return numbers


def release(error: BaseException, frame: FrameType | None, before: dict[str, int]) -> None:
    """Drop what the frames of an exception hold, and what `frame` has bound since `before`.

    Frames that have ended are cleared. The frame that holds the `with` block still runs: names that
    were bound to something else in the block become None, unless that is a number or text.
    """
    seen: set[int] = set()
    waiting: list[BaseException | None] = [error]
    while waiting:
        cause = waiting.pop()
        if cause is None or id(cause) in seen:
            continue
        seen.add(id(cause))
        waiting += [cause.__context__, cause.__cause__]
        traceback.clear_frames(cause.__traceback__)
        cause.__traceback__ = None
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
