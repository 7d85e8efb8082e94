"""Compute capabilities of GPUs, such as 8.6, as numbers that compare."""

from __future__ import annotations

ANY = (0, 0)
MODERN = (8, 0)
"""Kernels for bfloat16 and flash attention need this compute capability."""


def capability_numbers(text: str | None) -> tuple[int, int]:
    """The numbers of a compute capability; an unknown one counts as the lowest."""
    if text is None:
        return ANY
    major, minor = map(int, text.split("."))
    return major, minor
