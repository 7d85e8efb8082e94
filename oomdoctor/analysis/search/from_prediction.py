"""The micro-batch search that starts from a prediction, at the largest size predicted to fit.

A prediction may be wrong by some percent. So every size that ran corrects it, a size counts only
once it ran, and a rung is skipped only if its prediction is far above the budget.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from oomdoctor.analysis.search.micro_batch import (
    CLEAR_MARGIN,
    MAX_TRIES,
    NextSize,
    Sample,
    divisors,
    faster,
    standing,
)
from oomdoctor.units import format_bytes

# A rung is skipped if its smallest size is predicted above the budget by more than this share.
OUT_OF_REACH_MARGIN = 0.10
# A smaller size is worth a try if its predicted speed comes this close to that of the largest.
_AS_FAST = 0.97


@dataclass(frozen=True, slots=True)
class RungPrediction:
    """The predicted peak in bytes and tokens/s of a rung, by micro-batch size.

    `limited_by` says whether the "host" or the "device" sets the speed.
    """

    peaks: Mapping[int, int]
    rates: Mapping[int, float] = field(default_factory=dict)
    limited_by: Mapping[int, str | None] = field(default_factory=dict)


def out_of_reach(prediction: RungPrediction, usable_bytes: int) -> int | None:
    """How many bytes the smallest size is predicted to be short by; None if it is worth a try."""
    least = min(prediction.peaks.values(), default=0)
    return least - usable_bytes if least > usable_bytes * (1 + OUT_OF_REACH_MARGIN) else None


def _at_least(expected: Mapping[int, float], size: int) -> float:
    """The expected peak of a size; if it was not predicted, the highest of the smaller ones."""
    smaller = (peak for micro, peak in expected.items() if micro < size)
    return expected[size] if size in expected else max(smaller, default=0)


def open_sizes(
    effective: int, samples: tuple[Sample, ...], usable_bytes: int, prediction: RungPrediction
) -> tuple[int, ...]:
    """Sizes above the largest fit that were neither tried nor ruled out, for the report."""
    fits, above, ceiling = standing(effective, samples)
    if not fits:
        return ()
    expected = _corrected(prediction, fits, ceiling, usable_bytes)
    clear = usable_bytes * (1 + CLEAR_MARGIN)
    return tuple(size for size in above if _at_least(expected, size) <= clear)


def next_predicted(
    effective: int,
    samples: tuple[Sample, ...],
    usable_bytes: int,
    prediction: RungPrediction,
    *,
    timed: bool = True,
) -> NextSize | None:
    """The next micro-batch size to try; None once the search of this rung is over.

    If steps are not `timed`, it is over with the largest size that fits.
    """
    if any(s.outcome not in ("fits", "oom") for s in samples) or len(samples) >= MAX_TRIES:
        return None
    fits, above, ceiling = standing(effective, samples)
    expected = _corrected(prediction, fits, ceiling, usable_bytes)
    if not fits:
        return _edge(above, expected, usable_bytes, first=not samples)
    if candidates := open_sizes(effective, samples, usable_bytes, prediction):
        return _edge(candidates, expected, usable_bytes, first=False)
    return _maybe_faster(fits, prediction, divisors(effective)) if timed else None


def _edge(
    sizes: Sequence[int], expected: Mapping[int, float], usable_bytes: int, *, first: bool
) -> NextSize | None:
    """The largest size expected to fit; if there is none, the smallest."""
    if not sizes:
        return None
    promised = [size for size in sizes if _at_least(expected, size) <= usable_bytes]
    if not promised:
        return NextSize(sizes[0], "the smallest" if first else "not ruled out by the prediction")
    size = promised[-1]
    peak = f", at {format_bytes(round(expected[size]))}" if size in expected else ""
    return NextSize(size, f"the largest predicted to fit{peak}")


def _corrected(
    prediction: RungPrediction, fits: Mapping[int, Sample], ceiling: int, usable_bytes: int
) -> dict[int, float]:
    """The predicted peaks, times measured / predicted of the largest size that ran.

    If none ran, but a size that was predicted to fit ran out, the factor is the least that makes
    it not fit.
    """
    factor = 1.0
    ran = [size for size in sorted(fits) if prediction.peaks.get(size) and fits[size].peak_bytes]
    if ran:
        factor = (fits[ran[-1]].peak_bytes or 0) / prediction.peaks[ran[-1]]
    elif prediction.peaks.get(ceiling, 0):
        factor = max(1.0, usable_bytes / prediction.peaks[ceiling])
    return {size: peak * factor for size, peak in prediction.peaks.items()}


def _maybe_faster(
    fits: Mapping[int, Sample], prediction: RungPrediction, sizes: tuple[int, ...]
) -> NextSize | None:
    """A smaller size that may be as fast as the largest, which is not always the fastest."""
    if len(fits) > 1:
        return faster(fits, sizes)
    (largest,) = fits
    smaller = max((size for size in sizes if size < largest), default=0)
    best, rate = prediction.rates.get(largest), prediction.rates.get(smaller)
    slower = best is not None and rate is not None and rate < best * _AS_FAST
    if not smaller or slower:
        return None
    return NextSize(smaller, f"may be as fast as {largest}")
