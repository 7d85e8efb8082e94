"""The variables of running functions, read without leaving a copy of them behind."""

from __future__ import annotations

import inspect
import sys
from types import FrameType
from typing import Any


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
    found = dict(values)
    drop_copies(frame, values)
    return found
