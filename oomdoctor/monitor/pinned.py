"""Says when pinned host memory grows steadily, and which variable keeps it.

torch's history of a GPU does not show host memory. So once growth is seen, the tensors themselves
are looked at: who refers to them, up to a variable or an attribute.
"""

from __future__ import annotations

import gc
import inspect
import linecache
import re
import sys
import threading
from collections import Counter, deque
from collections.abc import Sequence
from dataclasses import dataclass
from inspect import isfunction
from types import CodeType, FrameType
from typing import Any

from oomdoctor.analysis.memory.trend import Growth, Trend
from oomdoctor.monitor.alerts import SHARE_OF_RISE, Alert
from oomdoctor.units import format_bytes

_CONTAINERS = (list, tuple, dict, set, deque)
_MOST_TENSORS = 2_000  # that are looked at
_LEVELS = 4  # of containers in containers
_OWN = "oomdoctor/monitor/"


@dataclass(frozen=True, slots=True)
class Keeper:
    """What keeps tensors: a name, and the line of code that fills it or uses it now."""

    name: str
    file: str
    line: int


class PinnedMemory:
    """The pinned host memory of this process, step by step; it warns once."""

    def __init__(self) -> None:
        self._trend = Trend()
        self._has_said = False

    def look(self, step: int) -> Alert | None:
        """An alert if pinned memory has grown steadily up to this step."""
        size = None if self._has_said else pinned_bytes()
        growth = None if size is None else self._trend.add(step, size)
        if growth is None or size is None:
            return None
        gc.collect()
        if size - (pinned_bytes() or 0) >= SHARE_OF_RISE * growth.rise_bytes:
            self._trend.forget()
            return None
        self._has_said = True
        return Alert("pinned", None, step, _message(growth, keeper()), growth.bytes_per_step)


def pinned_bytes() -> int | None:
    """Bytes of pinned memory that tensors of this process use; None if torch does not say."""
    import torch

    read = getattr(torch.cuda, "host_memory_stats", None)
    if read is None:
        return None
    stats = read()
    size = stats.get("active_bytes.current", stats.get("allocated_bytes.current"))
    return None if size is None else int(size)


def keeper() -> Keeper | None:
    """The variable or attribute that keeps most of the pinned tensors; None if there is none."""
    held = _pinned_tensors()
    for _ in range(_LEVELS):
        containers = _containers_of(held)
        if not containers:
            return None
        count, largest = max(containers, key=lambda counted: counted[0])
        if 2 * count < len(held):  # batches, each with some of the tensors: who keeps these?
            held = [container for _, container in containers]
            continue
        kept_by = _variable(largest) or _attribute_of_an_object(largest)
        if kept_by is not None:
            return kept_by
        held = [largest]
    return None


def _message(growth: Growth, kept_by: Keeper | None) -> str:
    kept = "Something keeps pinned tensors, such as batches of a DataLoader with pin_memory=True."
    if kept_by is not None:
        kept = f"`{kept_by.name}` keeps pinned tensors: {kept_by.file}:{kept_by.line}."
    return (
        f"pinned host memory has grown by {format_bytes(round(growth.bytes_per_step))} per step "
        f"since step {growth.since:,}. {kept} Release them once they are on the GPU."
    )


def _pinned_tensors() -> list[Any]:
    import torch

    tensors: list[Any] = []
    for tracked in gc.get_objects():
        if (
            isinstance(tracked, torch.Tensor)
            and tracked.device.type == "cpu"
            and tracked.is_pinned()
        ):
            tensors.append(tracked)
            if len(tensors) >= _MOST_TENSORS:
                break
    return tensors


def _containers_of(held: list[Any]) -> list[tuple[int, Any]]:
    """The containers that hold some of these objects, with the number of these."""
    counts: Counter[int] = Counter()
    containers: dict[int, Any] = {}
    for tensor in held:
        for other in gc.get_referrers(tensor):
            if isinstance(other, _CONTAINERS) and other is not held:
                counts[id(other)] += 1
                containers[id(other)] = other
    return [(counts[key], container) for key, container in containers.items()]


def _variable(container: Any) -> Keeper | None:
    """The variable of a running function or module that is the container, or has it."""
    for frame in _frames():
        for name, value in variables(frame).items():
            attribute = None if value is container else _attribute(value, container)
            if value is container or attribute is not None:
                shown = name if attribute is None else f"{name}.{attribute}"
                return _filled(shown, [frame.f_code], frame.f_lineno)
    return None


def _attribute_of_an_object(container: Any) -> Keeper | None:
    """The attribute of an object that no running function names."""
    direct = gc.get_referrers(container)
    # The attributes of an object may lie in a dictionary, which then is what refers to them.
    indirect = [
        referrer
        for holder in direct
        if type(holder) is dict
        for referrer in gc.get_referrers(holder)
    ]
    for owner in (*direct, *indirect):
        name = None if isinstance(owner, _CONTAINERS) else _attribute(owner, container)
        if name is None:
            continue
        codes = [
            function.__code__ for function in vars(type(owner)).values() if isfunction(function)
        ]
        if codes:
            shown = f"{type(owner).__name__}.{name}"
            return _filled(shown, codes, codes[0].co_firstlineno)
    return None


def _attribute(owner: Any, container: Any) -> str | None:
    try:
        values = vars(owner)
    except TypeError:
        return None
    return next((name for name, value in values.items() if value is container), None)


def _frames() -> list[FrameType]:
    """The frames of all threads, innermost first, without our own; modules are the outermost."""
    frames = []
    here = threading.get_ident()
    for thread, innermost in sys._current_frames().items():
        # Our own frame is not named: it would refer to itself, and keep what the others refer to.
        frame: FrameType | None = sys._getframe(1) if thread == here else innermost
        del innermost
        while frame is not None:
            if _OWN not in frame.f_code.co_filename:
                frames.append(frame)
            frame = frame.f_back
    return frames


def _filled(name: str, codes: Sequence[CodeType], now: int) -> Keeper:
    """The first line that fills the variable; the line that runs now if none shows."""
    file = codes[0].co_filename
    numbers = [line for code in codes for *_, line in code.co_lines() if line is not None]
    lines = range(min(numbers, default=1), max(numbers, default=1) + 1)
    filling = re.compile(
        rf"\b{re.escape(name.rpartition('.')[2])}\b\s*"
        r"(?:\.(?:append|extend|add|insert|appendleft)\(|\[[^\]]*\]\s*=[^=]|\+=)"
    )
    filled_at = next((at for at in lines if filling.search(linecache.getline(file, at))), now)
    return Keeper(name, file, filled_at)


def is_copied(frame: FrameType) -> bool:
    """Whether f_locals is a copy, as it is for functions before Python 3.13."""
    return sys.version_info < (3, 13) and bool(frame.f_code.co_flags & inspect.CO_OPTIMIZED)


def drop_copies(frame: FrameType, values: Any) -> None:
    """Empty the copy in `values`: the frame keeps it, and so all that it refers to."""
    if is_copied(frame):
        values.clear()


def variables(frame: FrameType) -> dict[str, Any]:
    """The variables of a frame by name."""
    values = frame.f_locals
    own = dict(values)
    drop_copies(frame, values)
    return own
