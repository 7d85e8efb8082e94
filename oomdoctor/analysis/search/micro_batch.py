"""The micro-batch search within one rung: the largest size that fits, then the fastest.

Sizes are the divisors of the effective batch, which keeps it exact. Memory as a function of the
micro-batch size is a maximum of straight lines (one for each moment of the step), so it only bends
upwards: the line through two sizes that fit may predict too little, never too much. It can rule
sizes out, but a size counts as fitting only once it ran.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from oomdoctor.analysis.memory.closed_form import trained_bytes_of
from oomdoctor.analysis.speed.throughput import tokens_per_s
from oomdoctor.records.job.result import Attempt, Outcome
from oomdoctor.units import format_bytes

MAX_TRIES = 6
# A size is ruled out only if its predicted peak exceeds the budget by more than runs vary.
CLEAR_MARGIN = 0.03
# A smaller difference in speed is not worth another try.
FASTER_BY = 0.01
# Where speeds are estimated, a larger size is worth its memory only if it is faster by more.
WORTH_MEMORY = 0.05


@dataclass(frozen=True, slots=True)
class Sample:
    """One finished try: its size and outcome, and if it ran, its peak and speed.

    `gradient_bytes` is an upper bound on the gradients of all trainable parameters.
    """

    micro_batch_size: int
    outcome: Outcome
    peak_bytes: int | None = None
    tokens_per_s: float | None = None
    gradient_bytes: int = 0
    is_estimate: bool = False
    borderline: bool = False

    @property
    def surely_fits(self) -> bool:
        """Whether it fits by more than the error of the prediction, if it is one."""
        return self.outcome == "fits" and not self.borderline


@dataclass(frozen=True, slots=True)
class NextSize:
    """The size to try next, and the reason to show."""

    micro_batch_size: int
    why: str


def divisors(effective: int) -> tuple[int, ...]:
    """The micro-batch sizes that keep the effective batch exact, ascending."""
    small = [size for size in range(1, math.isqrt(effective) + 1) if effective % size == 0]
    return tuple(sorted({*small, *(effective // size for size in small)}))


def sample_of(attempt: Attempt) -> Sample:
    """What the search needs from an attempt."""
    size, measured = attempt.config.micro_batch(), attempt.measurement
    near = attempt.borderline is not None
    if measured is None:
        return Sample(size, attempt.outcome, borderline=near)
    timing = measured.timing
    rate = None if timing is None else tokens_per_s(timing, attempt.config)
    gradients = trained_bytes_of(attempt.config) * measured.trainable_parameters
    estimated = timing is not None and timing.stopped_by == "estimated"
    peak = measured.deciding_peak_bytes()
    return Sample(size, attempt.outcome, peak, rate, gradients, estimated, near)


def chosen(samples: Sequence[Sample]) -> Sample | None:
    """The try that a report shows; None if there is none.

    Of the sizes that surely fit, the fastest. Where speeds are estimated, the smallest that is
    within 5% of the fastest: an estimate is not exact enough to fill a card for less. If none was
    timed, the largest. If none surely fits, the smallest borderline one that fits, or else the
    smallest.
    """
    fitting = [sample for sample in samples if sample.surely_fits]
    timed = [sample for sample in fitting if sample.tokens_per_s]
    if not timed:
        largest = max(fitting, key=_size, default=None)
        near = [sample for sample in samples if sample.outcome == "fits"]
        return largest or min(near or samples, key=_size, default=None)
    best = max(timed, key=lambda sample: (sample.tokens_per_s or 0.0, sample.micro_batch_size))
    if not best.is_estimate:
        return best
    alike = (sample for sample in timed if is_worth(sample.tokens_per_s, best.tokens_per_s))
    return min(alike, key=_size)


def is_worth(rate: float | None, best: float | None) -> bool:
    """Whether a size of this estimated speed may be chosen before the fastest, for its memory."""
    return bool(rate) and (rate or 0.0) >= (best or 0.0) * (1 - WORTH_MEMORY)


def _size(sample: Sample) -> int:
    return sample.micro_batch_size


def next_size(
    effective: int, samples: tuple[Sample, ...], usable_bytes: int, fixed: int | None = None
) -> NextSize | None:
    """The next micro-batch size to try; None once the search of this rung is over.

    It is over when the fixed size ran, the smallest size ran out of memory, a try ended in anything
    but "fits" or "oom", six tries were made, or the largest and the fastest size are known.
    """
    if fixed is not None:
        return None if samples else NextSize(fixed, "fixed")
    if not samples:
        return NextSize(1, "the smallest")
    fits, above, ceiling = standing(effective, samples)
    ended = any(sample.outcome not in ("fits", "oom") for sample in samples)
    if ended or not fits or len(samples) >= MAX_TRIES:
        return None
    larger = _larger(fits, above, ceiling, usable_bytes, effective)
    return larger or faster(fits, divisors(effective))


def untried(effective: int, samples: tuple[Sample, ...], usable_bytes: int) -> tuple[int, ...]:
    """Sizes above the largest fit that were neither tried nor ruled out, for the report."""
    fits, above, _ = standing(effective, samples)
    return tuple(_not_ruled_out(fits, above, usable_bytes, effective)) if fits else ()


def standing(
    effective: int, samples: tuple[Sample, ...]
) -> tuple[dict[int, Sample], list[int], int]:
    """What fits, the open sizes above it, and the smallest size known not to fit."""
    fits = {s.micro_batch_size: s for s in samples if s.outcome == "fits"}
    largest = max(fits, default=0)
    others = [s.micro_batch_size for s in samples if s.outcome != "fits"]
    ceiling = min((size for size in others if size > largest), default=effective + 1)
    above = [size for size in divisors(effective) if largest < size < ceiling]
    return fits, above, ceiling


def _larger(
    fits: Mapping[int, Sample], above: list[int], ceiling: int, usable: int, effective: int
) -> NextSize | None:
    candidates = _not_ruled_out(fits, above, usable, effective)
    if not candidates:
        return None
    if _line(fits) is None:
        return NextSize(candidates[0], "a second point for the prediction")
    if ceiling <= effective:
        # The line predicted too little: halve the range between the last fit and the miss.
        middle = candidates[len(candidates) // 2]
        return NextSize(middle, f"between {max(fits)} (fits) and {ceiling} (out of memory)")
    predicted = [size for size in candidates if _predicted_peak(fits, size) <= usable]
    if predicted:
        peak = format_bytes(round(_predicted_peak(fits, predicted[-1])))
        return NextSize(predicted[-1], f"the largest predicted to fit, at {peak}")
    return NextSize(candidates[0], "not ruled out by the prediction")


def _not_ruled_out(
    fits: Mapping[int, Sample], above: list[int], usable: int, effective: int
) -> list[int]:
    """The sizes above the largest fit that the line does not clearly rule out.

    With the whole effective batch in one micro-batch, the peak may be below the line by up to the
    gradients: without accumulation none are kept while activations grow.
    """
    limit = usable * (1 + CLEAR_MARGIN)
    spared = max((sample.gradient_bytes for sample in fits.values()), default=0)
    return [
        size
        for size in above
        if _predicted_peak(fits, size) - (spared if size == effective else 0) <= limit
    ]


def _line(fits: Mapping[int, Sample]) -> tuple[int, int, float] | None:
    """The last fitting size, its peak, and the bytes for each further sequence."""
    points = [(n, peak) for n in sorted(fits) if (peak := fits[n].peak_bytes) is not None]
    if len(points) < 2:
        return None
    (small, low), (large, high) = points[-2:]
    return large, high, max(0.0, (high - low) / (large - small))


def _predicted_peak(fits: Mapping[int, Sample], size: int) -> float:
    """The peak at `size`, by the line through the two largest sizes that fit; never too high."""
    line = _line(fits)
    if line is None:
        return 0.0
    last, peak, slope = line
    return peak + slope * (size - last)


def faster(fits: Mapping[int, Sample], sizes: tuple[int, ...]) -> NextSize | None:
    """A size next to the fastest that may be faster still, if the largest is not the fastest."""
    rates = {size: s.tokens_per_s for size, s in fits.items() if s.tokens_per_s is not None}
    best = max(rates, key=rates.__getitem__, default=0)
    if len(rates) < 2 or rates[max(rates)] >= rates[best] * (1 - FASTER_BY):
        return None
    upper = min(size for size in rates if size > best)
    lower = max((size for size in rates if size < best), default=best)
    above = [size for size in sizes if best < size < upper]
    between = above or [size for size in sizes if lower < size < best]
    if not between:
        return None
    return NextSize(between[len(between) // 2], f"may be faster than {best}")


MOST_WITH_ROOM = 5


def next_with_room(
    sizes: Sequence[int], tried: Mapping[int, Sample], usable_bytes: int, spared_bytes: int = 0
) -> int | None:
    """The next of the ascending `sizes` to try where there is room for any; None once it is over.

    On such an emulated GPU each try gives a peak. Between two sizes that were tried memory is at
    most on the straight line through them, so the smallest and the largest size come first, and
    the line names the next one.

    The largest size accumulates nothing, so it needs up to `spared_bytes` less than the others.
    """
    if not tried:
        return sizes[0]
    fitting = [size for size in tried if tried[size].outcome == "fits"]
    if not fitting and len(tried) == 1 and len(sizes) > 1:
        least = tried[sizes[0]].peak_bytes
        return sizes[-1] if least is not None and least - spared_bytes <= usable_bytes else None
    if not fitting or len(tried) >= MOST_WITH_ROOM:
        return None
    if sizes[-1] not in tried:
        return sizes[-1]
    low = max(fitting)
    high = min((size for size in tried if size > low), default=None)
    if high is None:
        return None
    between = [size for size in sizes if low < size < high]
    least, most = tried[low].peak_bytes, tried[high].peak_bytes
    if least is None or most is None:
        return between[len(between) // 2] if between else None
    slope, limit = (most - least) / (high - low), usable_bytes * (1 + CLEAR_MARGIN)
    open_sizes = (size for size in between if least + slope * (size - low) <= limit)
    return max(open_sizes, default=None)
