"""What a set of signed errors comes to. Errors are shares: 0.01 is one percent too much."""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any


@dataclass(frozen=True, slots=True)
class Figures:
    """Medians of the signed and of the absolute errors, and 95th percentile of the latter."""

    count: int
    signed_median: float
    absolute_median: float
    p95: float

    def document(self) -> dict[str, Any]:
        """As JSON has it, to a hundredth of a percent."""
        return {name: round(value, 4) for name, value in self.exact().items()}

    def exact(self) -> dict[str, Any]:
        """As JSON has it, not rounded."""
        return asdict(self)


def figures_of(errors: Sequence[float]) -> Figures:
    """The figures of at least one error."""
    absolute = sorted(abs(error) for error in errors)
    return Figures(
        count=len(errors),
        signed_median=statistics.median(errors),
        absolute_median=statistics.median(absolute),
        p95=percentile(absolute, 0.95),
    )


def percentile(values: Sequence[float], share: float) -> float:
    """The smallest value that at least this share of the sorted values does not exceed."""
    return values[max(0, math.ceil(share * len(values)) - 1)]


def percent(share: float, *, sign: bool = True) -> str:
    """`+1.25 %`."""
    return f"{share * 100:+.2f} %" if sign else f"{share * 100:.2f} %"


def print_figures(title: str, groups: Mapping[tuple[str, ...], Figures]) -> None:
    """One line a group."""
    print(f"\n{title:32} {'rows':>5} {'signed':>8} {'absolute':>9} {'95th':>8}")
    for name, figures in groups.items():
        print(
            f"{' '.join(name):32} {figures.count:>5} {percent(figures.signed_median):>8} "
            f"{percent(figures.absolute_median, sign=False):>9} "
            f"{percent(figures.p95, sign=False):>8}"
        )
