"""Estimate how long the steps of a simulated rung take on a card."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from oomdoctor.analysis.simulator.recorded import Cost, times
from oomdoctor.analysis.simulator.tape import Region
from oomdoctor.analysis.simulator.uncertainty import time_uncertainty
from oomdoctor.analysis.speed.roofline import estimate
from oomdoctor.records.costs import Calibration, OpCost
from oomdoctor.records.evidence import SpeedErrorRecord
from oomdoctor.records.machine import GpuFacts
from oomdoctor.records.measurement import Timing

_MAKE_STATES = ("zeros_like", "zeros", "full", "ones")  # they create optimizer states in step one
_OVER_LISTS = ("_foreach_", "_fused_")


@dataclass(frozen=True, slots=True)
class Work:
    """The operators of a micro-step and of an optimizer step at full depth, with their counts."""

    micro_step: list[tuple[OpCost, int]]
    optimizer_step: list[tuple[OpCost, int]]


def work_of(
    costs: list[Cost], windows: list[tuple[int, str, str]], depths: Mapping[int, tuple[int, int]]
) -> Work:
    """The work of steps, from the costs of a recorded one."""
    forward = next(i for i, (_, _, phase) in enumerate(windows) if phase == "forward")
    optimizer = next(i for i, (_, _, phase) in enumerate(windows) if phase == "optimizer")
    counts = {region: times(region, depths) for region in {cost.region for cost in costs}}
    micro_step = [(c.cost, counts[c.region]) for c in costs if forward <= c.window < optimizer]
    update = _steady([cost for cost in costs if cost.window == optimizer], counts)
    return Work(micro_step, [(cost, counts[region]) for region, _, cost in update])


def estimated_timing(
    work: Work,
    gpu: GpuFacts,
    calibration: Calibration | None,
    errors: Sequence[SpeedErrorRecord],
) -> Timing | None:
    """Times of a micro-step and an optimizer step; None if the card's peak rates are unknown."""
    micro = estimate(work.micro_step, gpu, calibration)
    step = estimate(work.optimizer_step, gpu, calibration)
    if micro is None or step is None:
        return None
    return Timing(
        micro_step_s=micro.seconds,
        micro_step_spread=time_uncertainty(micro, gpu, errors).share,
        optimizer_step_s=step.seconds,
        optimizer_step_spread=time_uncertainty(step, gpu, errors).share,
        first_untraced_step_s=micro.seconds + step.seconds,
        warmup_steps=0,
        timed_steps=0,
        stopped_by="estimated",
        limited_by="host" if micro.host_s >= micro.device_s else "device",
    )


def grow_evenly(first: list[Cost], second: list[Cost], distance: int) -> bool:
    """Whether two recordings ran the same operators, and every cost grew by a whole number a row.

    The sizes of the recordings are `distance` rows apart.
    """
    return len(first) == len(second) and all(
        a.region == b.region
        and a.window == b.window
        and a.cost.name == b.cost.name
        and a.cost.kind == b.cost.kind
        and a.cost.dtype == b.cost.dtype
        and a.cost.unpacked_bytes == b.cost.unpacked_bytes
        and not (b.cost.flops - a.cost.flops) % distance
        and not (b.cost.bytes_moved - a.cost.bytes_moved) % distance
        for a, b in zip(first, second, strict=True)
    )


def costs_between(
    first: list[Cost], low: int, second: list[Cost], high: int, size: int
) -> list[Cost]:
    """The costs at a micro-batch size, on the line through two recordings."""
    if low == high:
        return first
    rows, distance = size - low, high - low

    def between(a: OpCost, b: OpCost) -> OpCost:
        if a.flops == b.flops and a.bytes_moved == b.bytes_moved:
            return a
        return OpCost(
            a.name,
            a.kind,
            a.dtype,
            a.flops + (b.flops - a.flops) / distance * rows,
            a.bytes_moved + (b.bytes_moved - a.bytes_moved) / distance * rows,
            a.unpacked_bytes,
        )

    # Many operators are the same objects; so are those between them.
    known: dict[tuple[int, int], OpCost] = {}
    found = []
    for (region, window, a), (_, _, b) in zip(first, second, strict=True):
        pair = (id(a), id(b))
        if pair not in known:
            known[pair] = between(a, b)
        found.append(Cost(region, window, known[pair]))
    return found


def _steady(costs: list[Cost], counts: Mapping[Region | None, int]) -> list[Cost]:
    """The costs of a later optimizer step, from the recorded first one.

    Later steps create no states. An operator over a list is recorded once, without a unit, for the
    parameters of all simulated units. At full depth its cost grows like the states. `counts` are
    those of each unit at full depth.
    """
    states = [cost for cost in costs if cost.cost.name in _MAKE_STATES]
    simulated = sum(cost.cost.bytes_moved for cost in states)
    real = sum(cost.cost.bytes_moved * counts[cost.region] for cost in states)
    growth = real / simulated if simulated else 1.0
    return [
        cost._replace(cost=replace(cost.cost, bytes_moved=cost.cost.bytes_moved * growth))
        if cost.region is None and cost.cost.name.startswith(_OVER_LISTS)
        else cost
        for cost in costs
        if cost.cost.name not in _MAKE_STATES
    ]
