"""What a remedy is: a row of the tables in this folder, and how to compute what it frees."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from oomdoctor.explain.diagnosis.case import Case
from oomdoctor.explain.memory.terms import terms
from oomdoctor.records.diagnosis import Basis
from oomdoctor.units import MIB, format_bytes


@dataclass(frozen=True, slots=True)
class Effect:
    """How many bytes a change frees (None: cannot be computed), on what basis, and the arithmetic.

    `at_least`: only the requested tensor was counted; the rest of the effect is unknown.
    """

    frees_bytes: int | None
    basis: Basis
    arithmetic: str | None
    at_least: bool = False


@dataclass(frozen=True, slots=True)
class Row:
    """One change. `cost`: 0 nothing lost, 1-2 a little speed, 3-4 speed, 5-6 quality, 7+ money.

    `change` starts with a verb. `change`, `note` and `lines` may contain the $names that
    `choose.values_of` fills in. `when` says whether the change can help at all; `effect` says how
    much memory it frees.
    """

    key: str
    cost: int
    change: str
    when: Callable[[Case], bool]
    effect: Callable[[Case], Effect]
    lines: Mapping[str, str] = field(default_factory=dict)
    note: str | None = None


def always(case: Case) -> bool:
    """No condition beyond the cause that called for the row."""
    del case
    return True


def rule(text: str) -> Callable[[Case], Effect]:
    """A rule of thumb, without bytes."""
    return lambda case: Effect(None, "rule", text)


def changing(fallback: str, *, request: float = 0.0, **changes: Any) -> Callable[[Case], Effect]:
    """What the closed form says these changes save; without a model, a share of the request.

    `request` is the share of the requested tensor that is no longer allocated.
    """
    return lambda case: difference(case, changes, fallback, request)


def difference(
    case: Case, changes: Mapping[str, Any], fallback: str, request: float = 0.0
) -> Effect:
    """The bytes that the changed training saves, part by part.

    Counts only what is on the device at the moment of the failure; 0 if none of it changes.
    """
    if case.sizes is not None and case.training is not None:
        before = {term.name: term.size_bytes for term in terms(case.sizes, case.training)}
        after = {
            term.name.removeprefix("quantized "): term.size_bytes
            for term in terms(case.sizes, replace(case.training, **changes))
        }
        shared = [
            (name, size, after[key])
            for name, size in before.items()
            if (key := name.removeprefix("quantized ")) in after and name not in case.elsewhere()
        ]
        saved = sum(old - new for _, old, new in shared)
        if saved > 0:
            parts = [
                f"{name} {format_bytes(old)} -> {format_bytes(new)}"
                for name, old, new in shared
                if old != new
            ]
            return Effect(saved, "arithmetic", ", ".join(parts))
        if case.training.tokens is not None and not request:
            return Effect(0, "arithmetic", "nothing on the device gets smaller")
    if request and (case.requested or 0) >= 50 * MIB:
        saved = round((case.requested or 0) * request)
        left = (case.requested or 0) - saved
        asked = format_bytes(case.requested)
        text = f"at least the request itself: {asked} -> {format_bytes(left)}"
        return Effect(saved, "arithmetic", f"{text}; {fallback}", at_least=True)
    return Effect(None, "rule", fallback)


def held(size: int | None, words: str) -> Effect:
    """Bytes that the message itself prints; a rule of thumb if it prints none."""
    return Effect(None, "rule", None) if size is None else Effect(size, "measured", words)


def next_batch(case: Case) -> int | None:
    """The largest smaller batch that divides the current one and frees enough, else 1."""
    if case.batch is None:
        return None
    smaller = [size for size in range(case.batch - 1, 0, -1) if case.batch % size == 0]
    for size in smaller:
        saved = difference(case, {"micro_batch_size": size}, "", 1 - size / case.batch).frees_bytes
        if saved is not None and case.needed is not None and saved >= case.needed:
            return size
    return smaller[-1 if case.needed is not None and case.sizes else 0] if smaller else 1
