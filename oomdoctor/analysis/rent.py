"""What renting GPUs costs."""

from __future__ import annotations

from typing import overload

_HOUR = 3600.0  # seconds


@overload
def rent(seconds: float, per_hour: float, gpus: int) -> float: ...
@overload
def rent(seconds: float | None, per_hour: float, gpus: int) -> float | None: ...
def rent(seconds: float | None, per_hour: float, gpus: int) -> float | None:
    """The cost of so many GPUs for so long, at a price per hour of one; None if it is not known."""
    return None if seconds is None else seconds / _HOUR * per_hour * gpus
