"""How long the steps of a simulated rung would take on a card."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from oomdoctor.analysis.roofline import estimate
from oomdoctor.analysis.tape import Region
from oomdoctor.records.costs import Calibration, OpCost
from oomdoctor.records.machine import GpuFacts
from oomdoctor.records.measurement import Timing
from oomdoctor.worker.recording import Cost


def times(region: Region | None, depths: Mapping[int, tuple[int, int]]) -> int:
    """How often what happens in a simulated unit happens at full depth."""
    if region is None or region[0] not in depths:
        return 1
    simulated, real = depths[region[0]]
    return 1 + real - simulated if region[1] == 1 else 1  # the second stands for those left out


def estimated_timing(
    costs: list[Cost],
    windows: list[tuple[int, str, str]],
    depths: Mapping[int, tuple[int, int]],
    gpu: GpuFacts,
    calibration: Calibration | None = None,
) -> Timing | None:
    """Times of a micro-step and of an optimizer step; None where the card's peaks are unknown."""
    forward = next(i for i, (_, _, phase) in enumerate(windows) if phase == "forward")
    optimizer = next(i for i, (_, _, phase) in enumerate(windows) if phase == "optimizer")
    micro = estimate(_deep(costs, depths, range(forward, optimizer)), gpu, calibration)
    update = estimate(_deep(costs, depths, range(optimizer, optimizer + 1)), gpu, calibration)
    if micro is None or update is None:
        return None
    return Timing(
        micro_step_s=micro.seconds,
        micro_step_spread=micro.uncertainty,
        optimizer_step_s=update.seconds,
        optimizer_step_spread=update.uncertainty,
        first_untraced_step_s=micro.seconds + update.seconds,
        warmup_steps=0,
        timed_steps=0,
        stopped_by="estimated",
    )


def costs_between(
    first: list[Cost], low: int, second: list[Cost], high: int, size: int
) -> list[Cost]:
    """The operators at a micro-batch size, by the line through two recordings."""
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


def _deep(costs: list[Cost], depths: Mapping[int, tuple[int, int]], windows: range) -> list[OpCost]:
    """The operators of some windows at full depth, each as often as it happens."""
    return [
        entry.cost
        for entry in costs
        if entry.window in windows
        for _ in range(times(entry.region, depths))
    ]
