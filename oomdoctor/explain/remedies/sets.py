"""The cheapest sets of changes with which a training fits."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import combinations
from typing import Any

from oomdoctor.explain.diagnosis.case import Case
from oomdoctor.explain.remedies.levers import LEVERS, Lever
from oomdoctor.explain.training.assumed import Training

_CLOSE = 0.9  # of the room; the closed form is up to about 10% below what a GPU then uses
_CLOSE_COST = 5
_SCORES_COST = 10  # for a set that leaves the attention scores where the failing line makes them


@dataclass(frozen=True, slots=True)
class Choice:
    """A set of levers and the training that it leads to, with what that needs at its peak."""

    levers: tuple[Lever, ...]
    training: Training
    cost: float
    leaves_bytes: int


def tight(case: Case, size_bytes: int) -> bool:
    """Whether a total fits, but closer to the room than the closed form is exact."""
    return case.room is not None and _CLOSE * case.room < size_bytes and fits(case, size_bytes)


def fits(case: Case, size_bytes: int) -> bool:
    """Whether a total fits into what this process may use, and frees what was missing."""
    return case.total is not None and size_bytes <= case.total - (case.needed or 0)


def alone(case: Case) -> list[Choice]:
    """Each lever alone, as far as it needs to go: the first step that fits, otherwise the last."""
    assert case.training is not None  # there is a total
    found = []
    for lever in LEVERS:
        last = None
        for steps, changes in enumerate(lever.changes(case, case.training)):
            last = _choice(case, (lever,), changes, lever.cost + steps / 10)
            if fits(case, last.leaves_bytes):
                break
        if last is not None and last.leaves_bytes < (case.total or 0):
            close = _CLOSE_COST if tight(case, last.leaves_bytes) else 0
            found.append(replace(last, cost=last.cost + close))
    return found


def together(case: Case) -> list[Choice]:
    """The cheapest set of at least two levers that fits, for each method; none if none fits.

    A set is left out if it only adds a change of method to one that fits without it.
    """
    found: list[Choice] = []
    for methods in _methods(case):
        best = _cheapest(case, methods)
        if best is None:
            continue
        keys = {lever.key for lever in best.levers}
        if not any({lever.key for lever in other.levers} <= keys for other in found):
            found.append(best)
    return [choice for choice in found if len(choice.levers) > 1]


def smallest(case: Case) -> Choice | None:
    """The set of levers that needs the least memory, whatever it costs."""
    found = [_furthest(case, methods) for methods in _methods(case)]
    return min(found, key=lambda choice: choice.leaves_bytes, default=None)


def _methods(case: Case) -> Iterator[tuple[Lever, ...]]:
    yield ()
    assert case.training is not None  # there is a total
    for lever in LEVERS:
        if lever.tier and any(True for _ in lever.changes(case, case.training)):
            yield (lever,)


def _cheapest(case: Case, methods: tuple[Lever, ...]) -> Choice | None:
    """The cheapest set with these methods that fits; sequences are cut only if they must be."""
    if not fits(case, _furthest(case, methods).leaves_bytes):
        return None
    assert case.training is not None  # there is a total
    base = dict(_merged(case, case.training, methods))
    trained = case.training.changed(**base)
    options = [lever for lever in LEVERS if not lever.tier and any(lever.changes(case, trained))]
    best: Choice | None = None
    for cutting in (False, True):
        for count in range(len(options) + 1):
            for extra in combinations(options, count):
                keys = {lever.key for lever in extra}
                if ("shorter_sequence" in keys) != cutting or _exclude(extra):
                    continue
                limit = math.inf if best is None else best.cost
                for choice in _steps(case, (*methods, *extra), base, trained, limit):
                    if fits(case, choice.leaves_bytes) and choice.cost < limit:
                        best, limit = choice, choice.cost
        if best is not None:
            return best
    return best


def _exclude(levers: Sequence[Lever]) -> bool:
    """Whether two levers change the same thing, of which only one makes sense."""
    groups = [lever.change.group for lever in levers]
    return len(groups) != len(set(groups))


def _steps(
    case: Case, levers: tuple[Lever, ...], base: Mapping[str, Any], trained: Training, limit: float
) -> Iterator[Choice]:
    """The set with each number of steps of its levers that have several, if it is below a cost.

    The last steps together need the least memory: if they do not fit, no others do.
    """
    least = sum(lever.cost for lever in levers)
    if least >= limit:
        return
    sets: list[tuple[dict[str, Any], float]] = [(dict(base), least)]
    for lever in levers:
        if lever.tier:
            continue
        sets = [
            ({**changes, **more}, cost + steps)
            for changes, cost in sets
            for steps, more in enumerate(lever.changes(case, trained))
        ]
    if not fits(case, _choice(case, levers, sets[-1][0], 0).leaves_bytes):
        return
    for changes, cost in sets:
        if cost >= limit:
            continue
        choice = _choice(case, levers, changes, cost)
        close = _CLOSE_COST if tight(case, choice.leaves_bytes) else 0
        yield replace(choice, cost=choice.cost + close)


def _furthest(case: Case, methods: tuple[Lever, ...]) -> Choice:
    """Every lever that helps, as far as it goes."""
    assert case.training is not None  # there is a total
    changes = dict(_merged(case, case.training, methods))
    levers = list(methods)
    size = _choice(case, tuple(levers), changes, 0).leaves_bytes
    for lever in LEVERS:
        if lever.tier:
            continue
        steps = list(lever.changes(case, case.training.changed(**changes)))
        if not steps:
            continue
        more = {**changes, **steps[-1]}
        less = _choice(case, (), more, 0).leaves_bytes
        if less < size:
            changes, size = more, less
            levers.append(lever)
    return _choice(case, tuple(levers), changes, 0)


def _merged(case: Case, training: Training, levers: tuple[Lever, ...]) -> Iterator[tuple[str, Any]]:
    for lever in levers:
        yield from next(iter(lever.changes(case, training))).items()


def _choice(
    case: Case, levers: tuple[Lever, ...], changes: Mapping[str, Any], cost: float
) -> Choice:
    assert case.training is not None  # there is a total
    training = case.training.changed(**changes)
    moment = case.whole(training)
    if case.scores_line is not None and all(lever.key != "sdpa" for lever in levers):
        cost += _SCORES_COST
    return Choice(levers, training, cost, moment.size_bytes + case.context)
