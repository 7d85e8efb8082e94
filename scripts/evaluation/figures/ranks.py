"""How well a predicted order agrees with a measured one."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import combinations


@dataclass(frozen=True, slots=True)
class Agreement:
    """Pairs in the same order, in the opposite one, and those that only one side tells apart."""

    concordant: int = 0
    discordant: int = 0
    tied_predicted: int = 0
    tied_measured: int = 0

    @property
    def tau_b(self) -> float | None:
        """Kendall's tau-b (Kendall 1945); None where a side tells nothing apart."""
        told = self.concordant + self.discordant
        predicted, measured = told + self.tied_measured, told + self.tied_predicted
        if not predicted or not measured:
            return None
        return (self.concordant - self.discordant) / math.sqrt(predicted * measured)


def agreement(
    predicted: Sequence[float], measured: Sequence[float], *, least: float = 0.0
) -> Agreement:
    """Over all pairs whose measured values differ by more than the share `least` of the smaller."""
    concordant = discordant = tied_predicted = tied_measured = 0
    for (p, m), (q, n) in combinations(zip(predicted, measured, strict=True), 2):
        if abs(m - n) <= least * min(m, n) and least:
            continue
        if m == n:
            tied_measured += p != q
        elif p == q:
            tied_predicted += 1
        elif (p < q) == (m < n):
            concordant += 1
        else:
            discordant += 1
    return Agreement(concordant, discordant, tied_predicted, tied_measured)
