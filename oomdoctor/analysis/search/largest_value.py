"""The search for the largest value of one setting that fits, for one rung on one card.

It only decides which value to try next. Every value it ends with was tried, and so was the next
one up.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Sequence
from dataclasses import dataclass, replace
from math import prod

from oomdoctor.analysis.dataset_distribution import STEP_TOKENS
from oomdoctor.records.configuration.config import TrainConfig, scored_tokens
from oomdoctor.records.facts.choices import AUTO
from oomdoctor.records.report.searched import SolvedKey

_MOST_TOKENS = 1 << 20
_MOST_ROWS = 4096
_MOST_RANK = 4096
_MOST_PERCENT = 95
_GROWTH = 4  # factor to the next value while nothing is known about how the peak grows


@dataclass(frozen=True, slots=True)
class Values:
    """The values to choose from, ascending, and why there are no larger ones."""

    steps: Sequence[int]
    limited_by: str


@dataclass(frozen=True, slots=True)
class Limits:
    """What ends the values of a setting; None if unknown.

    `positions` is the longest sequence that the model can process, `width` the size of its hidden
    states: an adapter of that rank is larger than the layer it adapts. A prompt takes
    `prompt_tokens`, and vLLM does not start with less than `least_percent` of the card.
    """

    positions: int | None
    width: int | None
    prompt_tokens: int = 0
    least_percent: int = 1


def values_of(key: SolvedKey, limits: Limits) -> Values:
    """The values of a setting."""
    positions, width = limits.positions, limits.width
    if key == "micro_batch_size":
        return Values(range(1, _MOST_ROWS + 1), f"the largest size tried, {_MOST_ROWS:,}")
    if key == "lora_rank":
        most = min(width or _MOST_RANK, _MOST_RANK)
        steps = [rank for rank in (1, 2, 4, *range(8, most + 1, 8)) if rank <= most]
        why = f"the model's width of {most:,}" if width else f"the largest rank tried, {most:,}"
        return Values(steps, why)
    if key == "num_generations":
        return Values(range(2, _MOST_ROWS + 1), f"the most tried, {_MOST_ROWS:,}")
    if key == "vllm_gpu_memory_utilization":
        shares = range(min(limits.least_percent, _MOST_PERCENT), _MOST_PERCENT + 1)
        return Values(shares, f"the largest share tried, {_MOST_PERCENT} %")
    if key == "completion_length" and positions is not None:
        positions -= limits.prompt_tokens
    most = min(positions or _MOST_TOKENS, _MOST_TOKENS)
    steps = [*range(STEP_TOKENS, most, STEP_TOKENS), most]
    if positions is None or positions > most:
        return Values(steps, f"the longest sequence tried, {most:,} tokens")
    behind = " behind the prompt" if key == "completion_length" else ""
    return Values(steps, f"the model's {most:,} positions{behind}")


def start_of(config: TrainConfig, key: SolvedKey) -> int:
    """The value to begin with: that of the configuration."""
    if key == "vllm_gpu_memory_utilization":
        return round(100 * config.vllm_gpu_memory_utilization)
    if key == "completion_length":
        return scored_tokens(config)
    return 1 if key == "micro_batch_size" else int(getattr(config, key))


def at_value(config: TrainConfig, key: SolvedKey, value: int) -> TrainConfig:
    """The configuration at a value; the effective batch rises with the micro-batch size.

    It becomes the next multiple of the micro-batch size. The micro-batch size is 1 unless it is
    fixed or the setting in question.
    """
    if key == "micro_batch_size":
        whole = value * config.groups()
        effective = -(-config.effective_batch_size // whole) * whole
        return replace(config, micro_batch_size=value, effective_batch_size=effective)
    size = 1 if config.micro_batch_size == AUTO else config.micro_batch_size
    if key == "sequence_length":
        return replace(config, sequence_length=value, micro_batch_size=size)
    if key == "completion_length":
        prompt = config.sequence_length - scored_tokens(config)
        return replace(
            config, completion_length=value, sequence_length=prompt + value, micro_batch_size=size
        )
    if key == "num_generations":  # of as many prompts
        rows = config.effective_batch_size // config.num_generations * value
        return replace(
            config, num_generations=value, effective_batch_size=rows, micro_batch_size=size
        )
    if key == "vllm_gpu_memory_utilization":
        return replace(config, vllm_gpu_memory_utilization=value / 100, micro_batch_size=size)
    return replace(config, lora_rank=value, micro_batch_size=size)


@dataclass(frozen=True, slots=True)
class Tried:
    """Whether a value fits, and the peak of its tensors and the context.

    That peak grows smoothly. What the allocator holds beyond it does not, because on a full device
    the allocator gives memory back. `staying_bytes` is the part of the peak that does not grow with
    the value, `gradient_bytes` the part that gradients take; None if unknown.
    """

    fits: bool
    peak_bytes: int
    staying_bytes: int | None = None
    gradient_bytes: int | None = None


class LargestValue:
    """One search: ask `next_try`, and give the result to `take`, until there is none to try.

    `start` is the value to begin with. `single_step` is the micro-batch size from which on
    gradients do not accumulate, which may need less memory than a slightly smaller size.
    """

    def __init__(
        self, values: Sequence[int], usable_bytes: int, start: int, single_step: int | None = None
    ) -> None:
        self.values, self.usable_bytes, self.single_step = values, usable_bytes, single_step
        self.start = max((value for value in values if value <= start), default=values[0])
        self.tried: dict[int, Tried] = {}
        self._end = values[-1] + 1
        self._bracket = Bracket(0, None, self._end, None)
        self._close_misses = 0  # in a row: only the allocator was in the way

    @property
    def largest(self) -> int | None:
        """The largest value known to fit."""
        return self._bracket.low or None

    @property
    def smallest_miss(self) -> int | None:
        """The smallest value above it known not to fit."""
        return self._bracket.high if self._bracket.high < self._end else None

    def take(self, value: int, tried: Tried) -> None:
        """Keep a result."""
        self.tried[value] = tried
        close = not tried.fits and tried.peak_bytes <= self.usable_bytes
        self._close_misses = self._close_misses + 1 if close else 0
        bracket, peak = self._bracket, tried.peak_bytes
        if tried.fits and value > bracket.high:  # see `single_step`
            self._bracket = Bracket(value, peak, self._end, None)
        elif bracket.low < value < bracket.high:
            narrowed = bracket.narrowed(value, tried.fits, peak)
            is_measured = bracket.high < self._end  # else no guess between two known ends
            self._bracket = narrowed if is_measured else replace(narrowed, poor=0)

    def next_try(self) -> int | None:
        """The next value to try; None once the answer is known."""
        if not self.tried:
            return self.start
        bracket = self._bracket
        if bracket.low == 0:
            bracket = replace(bracket, low_bytes=self._staying())
        if bracket.high == self._end:
            expected = self._expected(self._end)
            if expected is None:
                return self._further()
            if expected <= self.usable_bytes:
                return self.values[-1] if bracket.low < self.values[-1] else None
            bracket = replace(bracket, high_bytes=expected)
        if self._close_misses:
            return self._lower(bracket)
        value = next_value(bracket, self.usable_bytes, self.values, self._met(bracket))
        return value if value is not None else self._without_accumulation()

    def _lower(self, bracket: Bracket) -> int | None:
        """Below a close miss: one value down, then two more, then four more."""
        below = [value for value in self.values if bracket.low < value < bracket.high]
        return below[-min(1 << (self._close_misses - 1), len(below))] if below else None

    def _met(self, bracket: Bracket) -> float | None:
        """Where the parabola through three points around the limit reaches it; None if unknown.

        Peaks grow with the square of the length where attention stores its scores.
        """
        points = {value: tried.peak_bytes for value, tried in self.tried.items()}
        if (staying := self._staying()) is not None:
            points.setdefault(0, staying)
        ends = {bracket.low, bracket.high}
        others = sorted(points.keys() - ends, key=lambda value: abs(value - bracket.high))
        if not others or not ends <= points.keys():
            return None
        return _crossing([(x, points[x]) for x in (*ends, others[0])], bracket, self.usable_bytes)

    def _staying(self) -> int | None:
        return min((t.staying_bytes for t in self.tried.values() if t.staying_bytes), default=None)

    def _further(self) -> int | None:
        """A multiple of the largest value that fits."""
        above = [value for value in self.values if self._bracket.low < value < self._end]
        return min(above, key=lambda value: abs(value - self._bracket.low * _GROWTH), default=None)

    def _expected(self, value: int) -> int | None:
        """The peak at a value above all that fit, on the line through the last two of them."""
        points = {size: t.peak_bytes for size, t in self.tried.items() if t.fits}
        staying = self._staying()
        if len(points) < 2 and staying is not None:
            points[0] = staying
        if len(points) < 2:
            return None
        before, last = sorted(points)[-2:]
        slope = (points[last] - points[before]) / (last - before)
        return points[last] + round(slope * (value - last))

    def _without_accumulation(self) -> int | None:
        """The size that needs no accumulation, if a smaller one misses by less than is saved."""
        size, miss = self.single_step, self.smallest_miss
        if size is None or miss is None or size in self.tried or not miss < size <= self.values[-1]:
            return None
        saved = max((t.gradient_bytes or 0 for t in self.tried.values()), default=0)
        expected = self._expected(size)
        return size if expected is not None and expected - saved <= self.usable_bytes else None


def _crossing(points: Sequence[tuple[int, int]], bracket: Bracket, limit: int) -> float:
    """Where the parabola through three points reaches the limit, between the ends of a bracket."""

    def height(x: float) -> float:
        total = 0.0
        for own, peak in points:
            total += peak * prod((x - at) / (own - at) for at, _ in points if at != own)
        return total

    low, high = float(bracket.low), float(bracket.high)
    for _ in range(40):
        middle = (low + high) / 2
        low, high = (middle, high) if height(middle) <= limit else (low, middle)
    return low


@dataclass(frozen=True, slots=True)
class Bracket:
    """The two values between which a rung stops fitting, with peaks in bytes, None if unknown.

    Invariant: `low` fits (0 counts as fitting), `high` does not. `poor` is the number of guesses
    in a row that left more than half of the bracket.
    """

    low: int
    low_bytes: int | None
    high: int
    high_bytes: int | None
    poor: int = 0

    def narrowed(self, value: int, fits: bool, peak_bytes: int | None) -> Bracket:
        """The bracket after `value` between its ends was tried."""
        left = self.high - value if fits else value - self.low
        poor = self.poor + 1 if 2 * left > self.high - self.low else 0
        if fits:
            return Bracket(value, peak_bytes, self.high, self.high_bytes, poor)
        return Bracket(self.low, self.low_bytes, value, peak_bytes, poor)


def next_value(
    bracket: Bracket, usable_bytes: int, values: Sequence[int], met: float | None = None
) -> int | None:
    """The next of the ascending `values` to try in the bracket; None if none is left.

    It is the next one above `met`, by default where the straight line through the two ends reaches
    the usable memory. Peaks grow faster than the value, so the line gets there too early. After two
    poor guesses it is the middle.
    """
    first = bisect_right(values, bracket.low)
    last = bisect_left(values, bracket.high) - 1
    if first > last:
        return None
    low, high = bracket.low_bytes, bracket.high_bytes
    if bracket.poor > 1 or low is None or high is None or high <= low:
        return values[(first + last) // 2]
    if met is None:
        met = bracket.low + (usable_bytes - low) / (high - low) * (bracket.high - bracket.low)
    return values[min(max(bisect_right(values, met), first), last)]
