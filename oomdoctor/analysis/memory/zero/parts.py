"""Bytes by category, of which a peak consists."""

from __future__ import annotations

Parts = dict[str, int]
Course = list[tuple[str, Parts]]
"""What is held at moments of a load and a step, in their order, with the phase of each."""


def together(base: Parts, more: Parts) -> Parts:
    """The sum of two by category, in the order of the first."""
    names = (*base, *(name for name in more if name not in base))
    return {name: base.get(name, 0) + more.get(name, 0) for name in names}


def size_of(parts: Parts) -> int:
    """The bytes of all categories."""
    return sum(parts.values())
