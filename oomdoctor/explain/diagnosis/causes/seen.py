"""The conditions of the cause rules that a memory snapshot of the failure decides."""

from __future__ import annotations

from collections.abc import Callable

from oomdoctor.explain.diagnosis.case import Case
from oomdoctor.explain.diagnosis.causes.conditions import NONE, Lines
from oomdoctor.records.inside.categories import CATEGORY_WORDS, BlockCategory

_NAMED = tuple(category for category in CATEGORY_WORDS if category != "other")
_MUCH = 0.2  # of what was needed
_GREW = 0.1


def holds_most(category: BlockCategory) -> Callable[[Case], Lines]:
    """The category is the largest part of what was needed when the request failed."""

    def when(case: Case) -> Lines:
        seen = case.snapshot
        if seen is None or not any(seen.share(name) for name in _NAMED):
            return NONE
        largest = max(_NAMED, key=seen.share)
        return seen.lines(category) if largest == category else NONE

    return when


def holds_much(category: BlockCategory) -> Callable[[Case], Lines]:
    """The category is a large part of what was needed when the request failed."""

    def when(case: Case) -> Lines:
        seen = case.snapshot
        if seen is None or seen.share(category) < _MUCH:
            return NONE
        return seen.lines(category)

    return when


def left_behind(case: Case) -> Lines:
    """Each optimizer step left memory behind, and it has become enough to matter."""
    seen = case.snapshot
    if seen is None or seen.growth is None:
        return NONE
    grown = seen.growth.bytes_per_step * seen.growth.steps
    if grown < _GREW * seen.oom.allocated_bytes and grown < (case.missing or 0):
        return NONE
    where = seen.growth.where
    at = () if where is None else (f"made at {where.file}:{where.line} in {where.function}",)
    return at or seen.lines()[:1]
