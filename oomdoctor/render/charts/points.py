"""The sizes of rungs that fit, and those that nothing beats in memory and speed."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from oomdoctor.records.report import Report
from oomdoctor.records.result import ProbeResult
from oomdoctor.render.charts.look import Role
from oomdoctor.render.text import one_line
from oomdoctor.render.words import estimate, is_estimate, ranked_results

METHODS: dict[str, tuple[Role, str, str]] = {
    "full": ("full", "o", "full fine-tuning"),
    "lora": ("lora", "s", "LoRA"),
    "qlora": ("qlora", "D", "QLoRA"),
}
"""The role, the marker and the word of each method."""


@dataclass(frozen=True, slots=True)
class Point:
    """A rung at a micro-batch size that fits. The `chosen` size of a rung is in the ranking."""

    label: str
    method: str
    micro_batch: int
    memory: int
    speed: float
    spread: float | None
    shown_speed: str
    chosen: bool
    estimated: bool


def points_of(report: Report) -> list[Point]:
    """Every size that fits and has a known peak and speed, in the order of the ranking."""
    found = []
    for result in ranked_results(report):
        for memory, speed, size, chosen in _sizes(result):
            found.append(
                Point(
                    one_line(result.label),
                    result.config.method,
                    size,
                    memory,
                    speed,
                    result.tokens_per_s_spread if chosen else None,
                    estimate(speed, result),
                    chosen,
                    is_estimate(result),
                )
            )
    return found


def _sizes(result: ProbeResult) -> list[tuple[int, float, int, bool]]:
    """(peak, speed, micro-batch size, whether it was chosen) of each size that fits."""
    peak, speed = result.deciding_peak_bytes(), result.tokens_per_s
    if peak is None or not speed or result.borderline or result.micro_batch_size is None:
        return []
    others = [
        (one.peak_bytes, one.tokens_per_s, one.micro_batch_size, False)
        for one in result.tries
        if one.outcome == "fits"
        and not one.borderline
        and one.peak_bytes is not None
        and one.tokens_per_s
        and not one.peak_is_lower_bound
        and one.micro_batch_size != result.micro_batch_size
    ]
    return [(peak, speed, result.micro_batch_size, True), *others]


def front(points: Sequence[Point]) -> list[Point]:
    """The points that no other beats: none is as fast with less memory. By memory, ascending."""
    best: list[Point] = []
    for point in sorted(points, key=lambda one: (one.memory, -one.speed)):
        if not best or point.speed > best[-1].speed:
            best.append(point)
    return best
