"""Estimate the time of a sequence of operators on a card, by how much of its peaks it reaches.

    kernel   = ramp + hypot(FLOPs / (share x peak), bytes / (share x bandwidth)) + unpacking
    sequence = max(sum of kernels, operators x host time of one)

Kernels of one stream run one after the other, so their times add up. Within a kernel, arithmetic
overlaps with memory traffic, but not fully where both take about as long. The host issues operators
ahead of the device, so it costs time only if it is slower. How efficient a kernel is say
`products`, `attention` and `memory_bound`. Left out are other streams, power and heat beyond what
the efficiencies were measured with, and what a trainer does between its steps (reading data,
logging).

`scripts/evaluation/speed.py` and `rates.py` print the errors against recorded and published runs.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from functools import cache
from math import hypot

from oomdoctor.analysis.speed.attention import attention_of
from oomdoctor.analysis.speed.links import SLOWEST_COPIES_PER_S, host_link
from oomdoctor.analysis.speed.memory_bound import UNPACKING, bytes_per_s, passes_of
from oomdoctor.analysis.speed.products import grouped_share, share_of_rate
from oomdoctor.package_data import data_of
from oomdoctor.records.job.costs import Bound, Calibration, EstimatedTime, OpCost
from oomdoctor.records.job.machine import GpuFacts

_DATA = data_of("speed.toml")
_KERNELS = _DATA["kernels"]
_BYTES = {"bfloat16": 2, "float16": 2, "float32": 4}  # of an element; others have one
RAMP_S: float = _KERNELS["ramp_s"]
HOST_S: float = _KERNELS["host_s"]


def estimate(
    costs: Iterable[tuple[OpCost, int]], gpu: GpuFacts, calibration: Calibration | None = None
) -> EstimatedTime | None:
    """Seconds of the operators in eager mode, for one micro-step or one optimizer step.

    `costs` are operators, each with its number of runs. None if the card's bandwidth or its peak
    for a type of the products is unknown, and for cards without efficiencies (AMD).
    """
    factors = calibration or Calibration()
    efficiency = efficiency_of(gpu)
    if efficiency is None or not gpu.bandwidth_bytes_per_s:
        return None
    bandwidth, link = efficiency.bandwidth * gpu.bandwidth_bytes_per_s, host_link(gpu)
    copied = SLOWEST_COPIES_PER_S if link is None else link.bytes_per_s
    spent: dict[Bound, float] = {"compute": 0.0, "bandwidth": 0.0, "launch": 0.0}
    # Many operators of a model are the same objects.
    times: dict[int, tuple[OpCost, Bound, float, float]] = {}
    operators = 0
    for cost, count in costs:
        operators += count
        if id(cost) not in times:
            rate = copied if cost.kind == "copy" else bytes_per_s(cost, gpu, bandwidth)
            moving = cost.bytes_moved * passes_of(cost) / rate * factors.bandwidth
            computing = 0.0
            if cost.flops:
                reached = _rate(cost, gpu, efficiency)
                if reached is None:
                    return None
                computing = cost.flops / reached * factors.compute
            bound: Bound = "compute" if computing > moving else "bandwidth"
            unpacking = cost.unpacked_bytes / (bandwidth * UNPACKING) * factors.bandwidth
            times[id(cost)] = (cost, bound, hypot(computing, moving), unpacking)
        _, bound, working, unpacking = times[id(cost)]
        spent[bound] += working * count
        spent["bandwidth"] += unpacking * count
    spent["launch"] = operators * RAMP_S * factors.launch
    device, host = sum(spent.values()), operators * HOST_S * factors.launch
    shares: dict[Bound, float] = {"compute": 0.0, "bandwidth": 0.0, "launch": 1.0}
    if device > host:
        shares = {bound: seconds / device for bound, seconds in spent.items()}
    return EstimatedTime(max(device, host), device, host, shares)


def _rate(cost: OpCost, gpu: GpuFacts, efficiency: Efficiency) -> float | None:
    """FLOP/s that this kind of arithmetic reaches; None if its peak is unknown."""
    if cost.dtype == "bfloat16" and efficiency.emulated_bfloat16:
        plain = gpu.fp32_flops
        return None if plain is None else plain * efficiency.emulated_bfloat16
    # Pascal has no tensor cores: float16 products are as fast as float32.
    pascal = (gpu.compute_capability or "").startswith("6.")
    peak, share = {
        "bfloat16": (gpu.bf16_flops, efficiency.tensor),
        "float16": (gpu.fp32_flops if pascal else gpu.fp16_flops, efficiency.tensor),
        "float32": (gpu.fp32_flops, efficiency.float32),
        # On paper twice the rate, but bitsandbytes loses the gain to scaling; int8 peaks are not
        # among the facts.
        "int8": (gpu.fp16_flops, efficiency.tensor),
        "float8_e4m3fn": (gpu.fp8_flops, efficiency.tensor),
        "float8_e5m2": (gpu.fp8_flops, efficiency.tensor),
    }.get(cost.dtype, (None, 0.0))
    if peak is None:
        return None
    attention = attention_of(cost.name, gpu) if cost.kind == "attention" else None
    if attention is not None and cost.dtype != "float32":
        return peak * attention.share(cost.shape, backward="backward" in cost.name)
    item = _BYTES.get(cost.dtype, 1)
    share *= grouped_share(cost.name, gpu.compute_capability)
    return peak * share * share_of_rate(cost.shape, item, gpu.multiprocessors)


@dataclass(frozen=True, slots=True)
class Efficiency:
    """Achieved / peak; `tensor` and `float32` for large products.

    `emulated_bfloat16` is a share of the float32 peak, for cards without native bfloat16.
    `measured` is False if a share was taken from a related card.
    """

    tensor: float
    float32: float
    bandwidth: float
    emulated_bfloat16: float = 0.0
    measured: bool = True


@cache
def _table() -> tuple[tuple[list[str], str, Efficiency], ...]:
    rows = _DATA["efficiencies"]
    return tuple((row.pop("capabilities"), row.pop("word", ""), Efficiency(**row)) for row in rows)


def efficiency_of(gpu: GpuFacts) -> Efficiency | None:
    """The first row for the card's compute capability whose word is in its name."""
    words = ("", *gpu.name.split())
    rows = (row for row in _table() if gpu.compute_capability in row[0] and row[1] in words)
    return next((efficiency for _, _, efficiency in rows), None)
