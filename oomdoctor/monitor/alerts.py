"""Says when a device is nearly full, when memory grows steadily, and when it will run out.

It only looks at numbers. A growth is reported once more when three quarters of the steps that it
left are over, and a device that is nearly full when half of the room that it had is gone.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

from oomdoctor.analysis.memory.trend import Growth, Trend
from oomdoctor.monitor.readings import Reading
from oomdoctor.package_data import data_of
from oomdoctor.units import format_bytes, format_percent, format_seconds

AlertKind = Literal["near_limit", "growth", "larger_steps", "fragmentation", "cycles", "pinned"]
# How many times as long as the growth was seen it may take until memory is full. So a fast growth
# is reported early, and a slow one when there is more to go by.
_FAR = 50
SHARE_OF_RISE = 0.5  # what garbage collection gives back of a rise that was no leak

_CAUSES: dict[AlertKind, str] = data_of("alerts.toml")


@dataclass(frozen=True, slots=True)
class Alert:
    """A warning about a device; `device` is None for pinned memory of the host.

    `bytes_per_step` and `full_at_step`, the step at which memory runs out at this rate, belong to
    growth; else None.
    """

    kind: AlertKind
    device: int | None
    step: int
    message: str
    bytes_per_step: float | None = None
    full_at_step: int | None = None


class Alerts:
    """The alerts of one device.

    `collect` collects garbage and returns the bytes that are allocated then: memory that Python's
    garbage collector gives back is no leak.
    """

    def __init__(
        self, warn_at: float, total_steps: int | None, collect: Callable[[int], int]
    ) -> None:
        self.total_steps = total_steps
        self._warn_at, self._collect = warn_at, collect
        self._trends = {kind: Trend() for kind in _CAUSES}
        self._said: dict[AlertKind, float] = {}  # what was left then: steps, or a share of memory
        self._collect_from, self._patience = 0, 32

    def look(self, step: int, time_s: float, reading: Reading) -> list[Alert]:
        """The alerts that a reading after a step gives reason for."""
        alerts = [self._near_limit(step, reading)]
        sizes: dict[AlertKind, int] = {
            "growth": reading.allocated_bytes,
            "larger_steps": reading.peak_allocated_bytes,
            "fragmentation": reading.peak_reserved_bytes - reading.peak_allocated_bytes,
        }
        growths = {kind: self._trends[kind].add(step, size) for kind, size in sizes.items()}
        for kind, growth in growths.items():
            if growth is not None:  # what grows for the first reason makes the others grow too
                alerts.append(self._growing(kind, growth, step, time_s, reading))
                break
        return [alert for alert in alerts if alert is not None]

    def _near_limit(self, step: int, reading: Reading) -> Alert | None:
        share = reading.peak_allocated_bytes / max(1, reading.capacity_bytes)
        left = 1 - share
        if share < self._warn_at or left > self._said.get("near_limit", 1.0) / 2:
            return None
        self._said["near_limit"] = max(left, 1e-6)
        return Alert(
            "near_limit",
            reading.device,
            step,
            f"GPU {reading.device} is nearly full: step {step:,} needed "
            f"{format_bytes(reading.peak_allocated_bytes)} of the "
            f"{format_bytes(reading.capacity_bytes)} that this process can have "
            f"({format_percent(share)}).",
        )

    def _growing(
        self, kind: AlertKind, growth: Growth, step: int, time_s: float, reading: Reading
    ) -> Alert | None:
        needed = (
            reading.peak_reserved_bytes if kind == "fragmentation" else reading.peak_allocated_bytes
        )
        left = max(0.0, (reading.capacity_bytes - needed) / growth.bytes_per_step)
        if left > _FAR * (growth.until - growth.since) or left > self._said.get(kind, left * 4) / 4:
            return None
        if step < self._collect_from:
            return None
        if kind == "growth":
            given_back = reading.allocated_bytes - self._collect(reading.device)
            if given_back >= SHARE_OF_RISE * growth.rise_bytes:
                return self._cycles(step, reading.device, given_back)
        self._said[kind] = left
        full = step + int(left)
        return Alert(
            kind,
            reading.device,
            step,
            f"memory of GPU {reading.device} has grown by "
            f"{format_bytes(round(growth.bytes_per_step))} per step since step {growth.since:,}. "
            f"{self._when(full, left, step, time_s)} " + _CAUSES[kind],
            growth.bytes_per_step,
            full,
        )

    def _when(self, full: int, left: float, step: int, time_s: float) -> str:
        if self.total_steps is not None and full > self.total_steps:
            return f"It will last for all {self.total_steps:,} steps."
        soon = format_seconds(left * time_s / step) if step and time_s else ""
        return f"It will run out at about step {full:,}{f', in {soon}' if soon else ''}."

    def _cycles(self, step: int, device: int, given_back: int) -> Alert | None:
        """No leak: references in a circle, which Python frees later. Look less often from now."""
        for trend in self._trends.values():
            trend.forget()
        self._patience *= 2
        self._collect_from = step + self._patience
        if "cycles" in self._said:
            return None
        self._said["cycles"] = 0.0
        return Alert(
            "cycles",
            device,
            step,
            f"objects that refer to each other hold {format_bytes(given_back)} of GPU {device} "
            "until Python collects garbage. gc.collect() frees them; better, break the circle.",
        )
