"""The words for a remedy: what it gives, and the lines to type for this program."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace

from oomdoctor.explain.reading.programs import libraries
from oomdoctor.records.report.diagnosis import Diagnosis, Remedy
from oomdoctor.units import format_bytes

_BASIS = {"rule": "rule of thumb", "arithmetic": "computed", "predicted": "simulated"}
_CONFIRMED = {
    "replay": "it fits, confirmed by a replay of this run",
    "run": "it fits, confirmed by a second run with it",
    "no": "not confirmed",
}


def with_peaks(remedy: Remedy, before: int, after: int, *, enough: bool) -> Remedy:
    """The remedy with the peaks in bytes without it and with it, from a run or a simulation."""
    return replace(
        remedy,
        frees_bytes=max(0, before - after),
        leaves_bytes=after,
        basis="predicted",
        arithmetic=f"peak {format_bytes(before)} -> {format_bytes(after)}",
        enough=enough,
    )


def effect(diagnosis: Diagnosis, remedy: Remedy) -> str:
    """What the remedy gives and what it costs, without the arithmetic; empty if nothing is known.

    A number is said only if it was computed or measured for this failure.
    """
    told = None if remedy.confirmed is None else _CONFIRMED[remedy.confirmed]
    return "; ".join(filter(None, (*_size(diagnosis, remedy), told, remedy.note)))


def _size(diagnosis: Diagnosis, remedy: Remedy) -> Iterator[str | None]:
    if remedy.frees_bytes is None:
        yield remedy.arithmetic  # a rule in words
        return
    size, capacity = format_bytes(remedy.frees_bytes), diagnosis.numbers.capacity_bytes
    if remedy.leaves_bytes is not None and remedy.enough is not False:
        card = f" of {format_bytes(capacity)}" if capacity else ""
        bound = "at most " if remedy.confirmed == "replay" else ""
        yield f"then it needs {bound}{format_bytes(remedy.leaves_bytes)}{card}"
        return
    # More than the card has cannot be freed: the training would need that much less.
    beyond = capacity is not None and remedy.frees_bytes > capacity
    yield f"needs {size} less" if beyond else f"frees {size}"
    missing = diagnosis.short_bytes or missing_bytes(diagnosis)
    if missing and remedy.frees_bytes < missing:
        yield "not enough alone"


def derivation(remedy: Remedy) -> str:
    """How the number is known: "computed: weights 15.0 GiB + ..."."""
    basis = _BASIS.get(remedy.basis, remedy.basis)
    said = remedy.frees_bytes is None or not remedy.arithmetic  # the effect has the words
    return basis if said else f"{basis}: {remedy.arithmetic}"


def missing_bytes(diagnosis: Diagnosis) -> int | None:
    """How much of the request was not free."""
    numbers = diagnosis.numbers
    if numbers.requested_bytes is None or numbers.free_bytes is None:
        return None
    return max(0, numbers.requested_bytes - numbers.free_bytes) or None


def typed(diagnosis: Diagnosis, remedy: Remedy) -> dict[str, str]:
    """The line to type by the name of its program, whose own lines are the first ones.

    A log that names no program may be one of transformers or of plain PyTorch: then both.
    """
    lines, program, first = remedy.lines, diagnosis.framework, next(iter(remedy.lines), "")
    names = [program] if program in lines and first in libraries() else [first]
    if program is None and first in libraries():
        names = [name for name in ("transformers", "pytorch") if name in lines] or names
    return {name: lines[name] for name in names if name and name in lines}


def is_certain(diagnosis: Diagnosis, lines: Mapping[str, str]) -> bool:
    """Whether the lines need no name beside them: one line that is not for another library."""
    others = set(libraries()) - {diagnosis.framework}
    return len(lines) == 1 and not others & lines.keys()
