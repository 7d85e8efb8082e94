"""The micro-batch search that knows a prediction: it starts at the predicted edge.

A prediction may be wrong by some percent, so it is corrected by every size that ran, a size counts
only once it ran, and a rung is given up unmeasured only if the prediction is far above the budget.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from oomdoctor.analysis.search.micro_batch import (
    CLEAR_MARGIN,
    MAX_TRIES,
    NextSize,
    Sample,
    divisors,
    faster,
)
from oomdoctor.units import format_bytes

# Share of the budget by which the smallest size must be predicted above it to be left unmeasured.
OUT_OF_REACH_MARGIN = 0.10
# A smaller size is worth a try where its predicted speed comes this close to the largest one's.
_AS_FAST = 0.97


@dataclass(frozen=True, slots=True)
class RungPrediction:
    """What is predicted of a rung: the deciding peak in bytes and tokens/s, by micro-batch size."""

    peaks: Mapping[int, int]
    rates: Mapping[int, float] = field(default_factory=dict)


def out_of_reach(prediction: RungPrediction, usable_bytes: int) -> int | None:
    """By how many bytes the smallest size is predicted to miss; None where it is worth a try."""
    least = min(prediction.peaks.values(), default=0)
    return least - usable_bytes if least > usable_bytes * (1 + OUT_OF_REACH_MARGIN) else None


def _at_least(expected: Mapping[int, float], size: int) -> float:
    """The expected peak of a size; of one that was not predicted, that of the smaller ones."""
    smaller = (peak for known, peak in expected.items() if known < size)
    return expected[size] if size in expected else max(smaller, default=0)


def open_sizes(
    effective: int, samples: tuple[Sample, ...], usable_bytes: int, prediction: RungPrediction
) -> tuple[int, ...]:
    """Sizes above the largest fit that are neither known nor ruled out, for the report to tell."""
    fits = {s.micro_batch_size: s for s in samples if s.outcome == "fits"}
    if not fits:
        return ()
    largest = max(fits)
    missed = [s.micro_batch_size for s in samples if s.outcome != "fits"]
    ceiling = min((size for size in missed if size > largest), default=effective + 1)
    expected = _corrected(prediction, fits, ceiling, usable_bytes)
    clear = usable_bytes * (1 + CLEAR_MARGIN)
    return tuple(
        size
        for size in divisors(effective)
        if largest < size < ceiling and _at_least(expected, size) <= clear
    )


def next_predicted(
    effective: int, samples: tuple[Sample, ...], usable_bytes: int, prediction: RungPrediction
) -> NextSize | None:
    """The next micro-batch size to try, or None when the search of this rung is over."""
    if any(s.outcome not in ("fits", "oom") for s in samples) or len(samples) >= MAX_TRIES:
        return None
    fits = {s.micro_batch_size: s for s in samples if s.outcome == "fits"}
    missed = [s.micro_batch_size for s in samples if s.outcome == "oom"]
    largest = max(fits, default=0)
    ceiling = min((size for size in missed if size > largest), default=effective + 1)
    above = [size for size in divisors(effective) if largest < size < ceiling]
    expected = _corrected(prediction, fits, ceiling, usable_bytes)
    if not fits:
        return _edge(above, expected, usable_bytes, first=not samples)
    hopeful = [s for s in above if _at_least(expected, s) <= usable_bytes * (1 + CLEAR_MARGIN)]
    if hopeful:
        return _edge(hopeful, expected, usable_bytes, first=False)
    return _maybe_faster(fits, prediction, divisors(effective))


def _edge(
    sizes: list[int], expected: Mapping[int, float], usable_bytes: int, *, first: bool
) -> NextSize | None:
    """The largest size expected to fit; the smallest where none is."""
    if not sizes:
        return None
    promised = [size for size in sizes if _at_least(expected, size) <= usable_bytes]
    if not promised:
        return NextSize(sizes[0], "the smallest" if first else "the edge of the prediction")
    size = promised[-1]
    told = f", at {format_bytes(round(expected[size]))}" if size in expected else ""
    return NextSize(size, f"the largest predicted to fit{told}")


def _corrected(
    prediction: RungPrediction, fits: Mapping[int, Sample], ceiling: int, usable_bytes: int
) -> dict[int, float]:
    """The predicted peaks times what the largest size that ran took more than predicted.

    Where a size ran out that was predicted to fit, at least as much as makes it miss.
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
    """A smaller size where it may be as fast as the largest, which is not always the fastest."""
    if len(fits) > 1:
        return faster(fits, sizes)
    (largest,) = fits
    smaller = [size for size in sizes if size < largest]
    if not smaller:
        return None
    best = prediction.rates.get(largest)
    rate = prediction.rates.get(smaller[-1])
    if best is None or rate is None or rate >= best * _AS_FAST:
        return NextSize(smaller[-1], f"may be as fast as {largest}")
    return None
