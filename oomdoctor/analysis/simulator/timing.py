"""Estimate how long the steps of a simulated rung take on a card, and how far that may be off.

The error is the 95th percentile of the recorded errors of its kind. Our own runs take precedence
over published ones, which are few, so their error is at least that of single kernels. Errors are
recorded by architecture. On another one, or if the host is the bottleneck, the error of kernels or
hosts is added.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import get_args

from oomdoctor.analysis.simulator.recorded import Cost, times
from oomdoctor.analysis.simulator.tape import Region
from oomdoctor.analysis.speed.hosts import EAGER, Host
from oomdoctor.analysis.speed.roofline import efficiency_of, estimate
from oomdoctor.records.job.costs import Bound, Calibration, EstimatedTime, OpCost
from oomdoctor.records.job.machine import GpuFacts
from oomdoctor.records.job.measurement import Timing
from oomdoctor.records.job.simulation import Origin, Slower, SpeedErrorRecord

_MAKE_STATES = ("zeros_like", "zeros", "full", "ones")  # they create optimizer states in step one
_OVER_LISTS = ("_foreach_", "_fused_")

_ENOUGH = 5  # with fewer runs, a 95th percentile is just the largest of a few
_ORIGINS = get_args(Origin)  # our own runs come first
# Relative, by bottleneck. 80 % of the published kernels are nearer (scripts/evaluation/rates.py:
# products 0.15, attention 0.10, memory-bound kernels 0.24). Steps differ by more, above all between
# releases of the libraries: with these, 94 % of the published steps are inside. Hosts differ, and
# their processor is unknown: published times mean 9.5 to 40 us for an operator.
_SPREAD: dict[Bound, float] = {"compute": 0.25, "bandwidth": 0.33, "launch": 0.75}
# A factor if a card's efficiencies were taken from a related card, and for compiled steps, of which
# few times were published.
_UNMEASURED = 1.5
# Of calibrated estimates: the interval is this many times the largest error of the few steps that
# were checked, and no narrower than what scripts/evaluation/calibration.py asks of others.
_OF_FEW = 2.0
_LEAST_CALIBRATED = 0.15


Counted = Sequence[tuple[OpCost, int]]
"""Operators, each with its number of runs."""


@dataclass(frozen=True, slots=True)
class Work:
    """The operators of a micro-step and of an optimizer step at full depth, with their counts.

    The backward pass recomputes what was not kept. `host` launches the operators of a micro-step;
    the optimizer runs in eager mode.
    """

    forward: Counted
    backward: Counted
    optimizer_step: Counted
    host: Host = EAGER

    @property
    def micro_step(self) -> Counted:
        """The operators of both passes."""
        return (*self.forward, *self.backward)


def work_of(
    costs: list[Cost],
    windows: list[tuple[int, str, str]],
    depths: Mapping[int, tuple[int, int]],
    host: Host = EAGER,
) -> Work:
    """The work of steps, from the costs of a recorded one."""
    phases = [phase for _, _, phase in windows]
    forward, optimizer = phases.index("forward"), phases.index("optimizer")
    counts = {region: times(region, depths) for region in {cost.region for cost in costs}}
    update = _steady([cost for cost in costs if cost.window == optimizer], counts)
    passes: dict[bool, list[tuple[OpCost, int]]] = {True: [], False: []}
    for cost in costs:
        if forward <= cost.window < optimizer:
            is_forward = phases[cost.window] == "forward"
            passes[is_forward].append((cost.cost, counts[cost.region]))
    of_update = [(cost, counts[region]) for region, _, cost in update]
    return Work(passes[True], passes[False], of_update, host)


def estimated_timing(
    work: Work, gpu: GpuFacts, calibration: Calibration | None, errors: Sequence[SpeedErrorRecord]
) -> Timing | None:
    """Times of a micro-step and an optimizer step; None if the card's peak rates are unknown."""
    unmeasured = 1.0 if work.host.is_eager else _UNMEASURED
    micro = estimate(work.micro_step, gpu, calibration, work.host)
    step = estimate(work.optimizer_step, gpu, calibration)
    if micro is None or step is None:
        return None
    bound, share = max(micro.kernels_bound_by.items(), key=lambda part: part[1])
    return Timing(
        micro_step_s=micro.seconds,
        micro_step_spread=time_uncertainty(micro, gpu, errors, calibration) * unmeasured,
        optimizer_step_s=step.seconds,
        optimizer_step_spread=time_uncertainty(step, gpu, errors, calibration),
        first_untraced_step_s=micro.seconds + step.seconds,
        warmup_steps=0,
        timed_steps=0,
        stopped_by="estimated",
        limited_by="host" if micro.host_s >= micro.device_s else "device",
        bound=bound,
        bound_s=micro.seconds * share,
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
        and not (b.cost.relaid_bytes - a.cost.relaid_bytes) % distance
        and a.cost.filter == b.cost.filter
        and len(a.cost.shape) == len(b.cost.shape)
        and not any((y - x) % distance for x, y in zip(a.cost.shape, b.cost.shape, strict=True))
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
        if a == b:
            return a
        flops = a.flops + (b.flops - a.flops) / distance * rows
        moved = a.bytes_moved + (b.bytes_moved - a.bytes_moved) / distance * rows
        shape = tuple(x + (y - x) // distance * rows for x, y in zip(a.shape, b.shape, strict=True))
        relaid = a.relaid_bytes + (b.relaid_bytes - a.relaid_bytes) / distance * rows
        return replace(a, flops=flops, bytes_moved=moved, shape=shape, relaid_bytes=relaid)

    # Many operators are the same objects; so are those between them.
    between_pairs: dict[tuple[int, int], OpCost] = {}
    costs = []
    for (region, window, a), (_, _, b) in zip(first, second, strict=True):
        pair = (id(a), id(b))
        if pair not in between_pairs:
            between_pairs[pair] = between(a, b)
        costs.append(Cost(region, window, between_pairs[pair]))
    return costs


def _steady(costs: list[Cost], counts: Mapping[Region | None, int]) -> list[Cost]:
    """The costs of a later optimizer step, from the recorded first one.

    Later steps create no states. An operator over a list is recorded once for the parameters of all
    simulated units, in the unit of the first one, unless each unit has its own. At full depth its
    cost grows like the states. `counts` are those of each unit at full depth.
    """
    of_units = {cost.cost.name for cost in costs if cost.region is not None and cost.region[1] == 1}
    states = [cost for cost in costs if cost.cost.name in _MAKE_STATES]
    simulated = sum(cost.cost.bytes_moved for cost in states)
    real = sum(cost.cost.bytes_moved * counts[cost.region] for cost in states)
    growth = real / simulated if simulated else 1.0
    return [
        cost._replace(cost=replace(cost.cost, bytes_moved=cost.cost.bytes_moved * growth))
        if cost.cost.name.startswith(_OVER_LISTS) and cost.cost.name not in of_units
        else cost
        for cost in costs
        if cost.cost.name not in _MAKE_STATES
    ]


def time_uncertainty(
    estimated: EstimatedTime,
    gpu: GpuFacts,
    records: Sequence[SpeedErrorRecord],
    calibration: Calibration | None = None,
) -> float:
    """The share of itself by which an estimated time may be off either way.

    `gpu` must have a row in the table of efficiencies. If `probe --calibrate` ran on this very
    card, the steps that it checked narrow it, at most to `_LEAST_CALIBRATED`.
    """
    usual = _uncalibrated(estimated, gpu, records)
    if calibration is None or calibration.error is None:
        return usual
    return min(usual, max(_LEAST_CALIBRATED, _OF_FEW * calibration.error))


def _uncalibrated(
    estimated: EstimatedTime, gpu: GpuFacts, records: Sequence[SpeedErrorRecord]
) -> float:
    slower: Slower = "host" if estimated.host_s >= estimated.device_s else "device"
    alike = [r for r in records if r.slower == slower]
    own = [r for r in alike if r.compute_capability == gpu.compute_capability]
    record = next(
        (r for origin in _ORIGINS for r in own if r.origin == origin and r.count >= _ENOUGH), None
    )
    spread = _constants_spread(estimated, gpu)
    if record is not None and slower == "device":
        return record.p95 if record.origin == "measured" else max(record.p95, spread)
    basis = record or max(alike or records, key=lambda r: r.p95, default=None)
    return spread if basis is None else math.hypot(spread, basis.p95)


def _constants_spread(estimated: EstimatedTime, gpu: GpuFacts) -> float:
    """How far the sources of the roofline's constants differ, for the bottlenecks here."""
    share = sum(_SPREAD[bound] * part for bound, part in estimated.bound_by.items())
    efficiency = efficiency_of(gpu)
    measured = efficiency is not None and efficiency.measured
    return share if measured or estimated.bound_by["launch"] == 1.0 else share * _UNMEASURED
