"""Estimate how long the steps of a simulated rung take on a card."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace

from oomdoctor.analysis.simulator.uncertainty import time_uncertainty
from oomdoctor.analysis.speed.roofline import estimate
from oomdoctor.records.costs import Calibration, OpCost
from oomdoctor.records.machine import GpuFacts
from oomdoctor.records.measurement import Timing
from oomdoctor.system.evidence import speed_errors
from oomdoctor.worker.simulating.recorded import Cost, times

_MAKE_STATES = ("zeros_like", "zeros", "full", "ones")  # they create optimizer states in step one
_OVER_LISTS = ("_foreach_", "_fused_")


def estimated_timing(
    costs: list[Cost],
    windows: list[tuple[int, str, str]],
    depths: Mapping[int, tuple[int, int]],
    gpu: GpuFacts,
    calibration: Calibration | None = None,
) -> Timing | None:
    """Times of a micro-step and an optimizer step; None if the card's peak rates are unknown."""
    forward = next(i for i, (_, _, phase) in enumerate(windows) if phase == "forward")
    optimizer = next(i for i, (_, _, phase) in enumerate(windows) if phase == "optimizer")
    micro_step = [cost for cost in costs if forward <= cost.window < optimizer]
    update = _steady([cost for cost in costs if cost.window == optimizer], depths)
    micro = estimate(_deep(micro_step, depths), gpu, calibration)
    step = estimate(_deep(update, depths), gpu, calibration)
    if micro is None or step is None:
        return None
    errors = speed_errors()
    return Timing(
        micro_step_s=micro.seconds,
        micro_step_spread=time_uncertainty(micro, gpu, errors).share,
        optimizer_step_s=step.seconds,
        optimizer_step_spread=time_uncertainty(step, gpu, errors).share,
        first_untraced_step_s=micro.seconds + step.seconds,
        warmup_steps=0,
        timed_steps=0,
        stopped_by="estimated",
    )


def costs_between(
    first: list[Cost], low: int, second: list[Cost], high: int, size: int
) -> list[Cost]:
    """The costs at a micro-batch size, on the line through two recordings."""
    if low == high:
        return first
    share = (size - low) / (high - low)
    return [
        replace(
            a,
            cost=replace(
                a.cost,
                flops=a.cost.flops + share * (b.cost.flops - a.cost.flops),
                bytes_moved=a.cost.bytes_moved + share * (b.cost.bytes_moved - a.cost.bytes_moved),
            ),
        )
        for a, b in zip(first, second, strict=True)
    ]


def _steady(costs: list[Cost], depths: Mapping[int, tuple[int, int]]) -> list[Cost]:
    """The costs of a later optimizer step, from the recorded first one.

    Later steps create no states. An operator over a list is recorded once, without a unit, for the
    parameters of all simulated units. At full depth its cost grows like the states.
    """
    states = [cost for cost in costs if cost.cost.name in _MAKE_STATES]
    simulated = sum(cost.cost.bytes_moved for cost in states)
    real = sum(cost.cost.bytes_moved * times(cost.region, depths) for cost in states)
    growth = real / simulated if simulated else 1.0
    return [
        replace(cost, cost=replace(cost.cost, bytes_moved=cost.cost.bytes_moved * growth))
        if cost.region is None and cost.cost.name.startswith(_OVER_LISTS)
        else cost
        for cost in costs
        if cost.cost.name not in _MAKE_STATES
    ]


def _deep(costs: list[Cost], depths: Mapping[int, tuple[int, int]]) -> Iterator[tuple[OpCost, int]]:
    """The costs at full depth, each with its number of repetitions."""
    for entry in costs:
        yield entry.cost, times(entry.region, depths)
