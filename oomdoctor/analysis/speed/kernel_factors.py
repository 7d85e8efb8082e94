"""How much longer an operator takes than estimated, from measured ones that are like it.

    factor = exp(sum of w x log(factor of a measured one) / sum of w),   w = 1 / distance^4

Alike are products, and attention of one direction; other operators have to have the same name. One
whose name was not measured gets the median over those of its kind. The distance is that between the
logarithms of their sizes: every side of a product; rows, length and width of attention; bytes of
others. Far from all measured ones the nearest decides (inverse distance weighting, Shepard 1968, "A
two-dimensional interpolation function for irregularly-spaced data").
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Hashable, Iterable
from math import exp, log
from statistics import median

from oomdoctor.records.job.costs import KernelFactor, OpCost

_POWER = 4
_LEAST = 1e-9  # a distance
_Measured = tuple[tuple[float, ...], float]  # logarithms: of the sizes, and of the factor


class KernelFactors:
    """Measured factors, by what makes operators alike."""

    def __init__(self, kernels: Iterable[KernelFactor]) -> None:
        self._by_name: defaultdict[Hashable, list[_Measured]] = defaultdict(list)
        self._names: defaultdict[Hashable, dict[str, list[_Measured]]] = defaultdict(dict)
        for kernel in kernels:
            cost, measured = kernel.cost, (_place(kernel.cost), log(kernel.factor))
            for group in _same(cost):
                self._by_name[group].append(measured)
            for group in _akin(cost):
                self._names[group].setdefault(cost.name, []).append(measured)

    def of(self, cost: OpCost) -> float:
        """The factor of an operator; 1 if none that is like it was measured."""
        place = _place(cost)
        for group in _same(cost):
            if group in self._by_name:
                return exp(_between(place, self._by_name[group]))
        for group in _akin(cost):
            if group in self._names:
                each = [_between(place, measured) for measured in self._names[group].values()]
                return exp(median(each))
        return 1.0


_last: list[tuple[tuple[KernelFactor, ...], KernelFactors]] = []  # at most one


def factors_of(kernels: tuple[KernelFactor, ...]) -> KernelFactors:
    """The factors by what makes operators alike; the last ones stay, because a plan asks often."""
    if not _last or _last[0][0] is not kernels:
        _last[:] = [(kernels, KernelFactors(kernels))]
    return _last[0][1]


def _same(cost: OpCost) -> list[Hashable]:
    """What operators of the same kind share, the strictest first; only their sizes differ."""
    if cost.kind == "matmul":
        return [("matmul", cost.dtype)]
    if cost.kind == "attention":
        return [("attention", "backward" in cost.name, cost.dtype)]
    if cost.kind == "conv":
        return [("conv", "backward" in cost.name, _channels(cost), cost.dtype)]
    if cost.kind in ("elementwise", "irregular"):
        return [(cost.name, cost.kind, cost.dtype), (cost.name, cost.kind)]
    return [cost.kind] if cost.kind == "copy" else []


def _channels(cost: OpCost) -> str:
    """Which channels a convolution multiplies with each other; kernels differ by that."""
    if not cost.shape or cost.shape[0] == 1:
        return "all"
    is_single = cost.filter is not None and cost.shape[3] == cost.filter.taps
    return "none" if is_single else "groups"


def _akin(cost: OpCost) -> list[Hashable]:
    """What operators share that are like it under other names, the strictest first."""
    if cost.kind not in ("elementwise", "irregular"):
        return []
    return [(cost.kind, cost.dtype), cost.kind]


def _place(cost: OpCost) -> tuple[float, ...]:
    """Logarithms of the sizes."""
    if cost.kind in ("matmul", "attention", "conv") and len(cost.shape) >= 4:
        rows, *sides = cost.shape[:4]
        if cost.kind == "attention":
            return log(rows), log(sides[0]), log(sides[2])
        return log(rows), *map(log, sides)
    return (log(max(cost.bytes_moved, 1.0)),)


def _between(place: tuple[float, ...], measured: list[_Measured]) -> float:
    total = weights = 0.0
    for other, value in measured:
        if len(other) != len(place):
            continue
        distance = sum((a - b) ** 2 for a, b in zip(place, other, strict=True)) ** 0.5
        weight = max(distance, _LEAST) ** -_POWER
        total += weight * value
        weights += weight
    return total / weights if weights else 0.0
