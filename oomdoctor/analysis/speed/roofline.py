"""Estimate the time of a sequence of operators on a card, by how much of its peaks it reaches.

    kernel   = ramp + hypot(FLOPs / (share x peak), bytes / (share x bandwidth)) + preparing
    sequence = max(sum of kernels, operators x host time of one)

Kernels of one stream run one after the other, so their times add up. Within a kernel, arithmetic
overlaps with memory traffic, but not fully where both take about as long. Preparing is unpacking
4-bit weights, or changing the layout of what a convolution reads. The host issues operators
ahead of the device, so it costs time only if it is slower. How efficient a kernel is say
`products`, `attention`, `convolutions` and `memory_bound`, and how fast a host `hosts`. Left out
are other streams, power and heat beyond what the efficiencies were measured with, and what a
trainer does between its steps (reading data, logging).

`scripts/evaluation/speed.py` and `rates.py` print the errors against recorded and published runs.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cache
from math import hypot
from typing import NamedTuple

from oomdoctor.analysis.speed.attention import attention_of
from oomdoctor.analysis.speed.convolutions import Rates, convolution_time
from oomdoctor.analysis.speed.hosts import EAGER, Host, as_operators
from oomdoctor.analysis.speed.kernel_factors import factors_of
from oomdoctor.analysis.speed.links import SLOWEST_COPIES_PER_S, host_link
from oomdoctor.analysis.speed.memory_bound import RELAYING, UNPACKING, moving_seconds
from oomdoctor.analysis.speed.products import grouped_share, share_of_rate
from oomdoctor.package_data import data_of
from oomdoctor.records.job.costs import (
    TF32,
    Bound,
    Calibration,
    EstimatedTime,
    OpCost,
    element_bytes,
)
from oomdoctor.records.job.machine import GpuFacts

_DATA = data_of("speed.toml")
_KERNELS = _DATA["kernels"]
MOST_OF_PEAK = 0.95  # no training step comes closer to a published peak
CPU = "CPU"  # the vendor of a CPU that was measured
RAMP_S: float = _KERNELS["ramp_s"]


def estimate(
    costs: Iterable[tuple[OpCost, int]],
    gpu: GpuFacts,
    calibration: Calibration | None = None,
    host: Host = EAGER,
) -> EstimatedTime | None:
    """Seconds of the operators of one micro-step or one optimizer step, launched by `host`.

    `costs` are operators, each with its number of runs. None if the card's bandwidth or its peak
    for a type of the products is unknown, and for cards without efficiencies (AMD).
    """
    factors = calibration or Calibration()
    efficiency = efficiency_of(gpu)
    if efficiency is None or not gpu.bandwidth_bytes_per_s:
        return None
    bandwidth, link = efficiency.bandwidth * gpu.bandwidth_bytes_per_s, host_link(gpu)
    copied = SLOWEST_COPIES_PER_S if link is None else link.bytes_per_s
    alone = factors_of(factors.kernels)
    spent: dict[Bound, float] = {"compute": 0.0, "bandwidth": 0.0, "launch": 0.0}
    ramp_s = RAMP_S * factors.launch * factors.ramp
    ramps: dict[Bound, float] = {"compute": 0.0, "bandwidth": 0.0}
    # Many operators of a model are the same objects.
    times: dict[int, tuple[OpCost, _Parts, float, float]] = {}
    operators, launched = 0, 0.0
    for cost, count in costs:
        operators += count
        if id(cost) not in times:
            if cost.kind == "copy":
                moving = cost.bytes_moved / copied
            else:
                moving = moving_seconds(cost, gpu, bandwidth)
            ways = [
                _Parts(
                    cost.flops / way.flops_per_s * factors.compute,
                    moving * factors.bandwidth,
                    way.prepared_bytes / bandwidth * factors.bandwidth,
                )
                for way in _ways(cost, gpu, efficiency)
            ]
            if not ways:
                return None
            parts = min(ways, key=_Parts.seconds)
            working = parts.working
            if factors.kernels:
                working = max(working * alone.of(cost), _least_s(cost, gpu, efficiency))
            times[id(cost)] = (cost, parts, working, as_operators(cost))
        _, parts, working, equal = times[id(cost)]
        launched += count * equal
        bound: Bound = "compute" if parts.computing > parts.moving else "bandwidth"
        spent[bound] += working * count
        ramps[bound] += ramp_s * count
        spent["bandwidth"] += parts.preparing * count
    spent["launch"] = operators * ramp_s
    device = sum(spent.values())
    host_s = host.seconds(launched, gpu) * factors.launch * factors.host
    if device <= host_s:
        waits: dict[Bound, float] = {"compute": 0.0, "bandwidth": 0.0, "launch": 1.0}
        return EstimatedTime(host_s, device, host_s, waits, waits)
    shares = {bound: seconds / device for bound, seconds in spent.items()}
    with_ramps = {bound: (spent[bound] + ramp) / device for bound, ramp in ramps.items()}
    return EstimatedTime(device, device, host_s, shares, with_ramps)


@dataclass(frozen=True, slots=True)
class _Parts:
    """Seconds of a kernel: arithmetic and traffic, which overlap, and what comes before."""

    computing: float
    moving: float
    preparing: float

    @property
    def working(self) -> float:
        return hypot(self.computing, self.moving)

    def seconds(self) -> float:
        return self.working + self.preparing


class _Way(NamedTuple):
    """A kernel that can do an operator: its FLOP/s, and what others move before.

    `prepared_bytes` count as if they moved at the bandwidth of large streams.
    """

    flops_per_s: float
    prepared_bytes: float


def _ways(cost: OpCost, gpu: GpuFacts, efficiency: Efficiency) -> Sequence[_Way]:
    """The kernels among which a library takes the fastest; none if no rate is known."""
    unpacked = cost.unpacked_bytes / UNPACKING
    if not cost.flops:
        return [_Way(1.0, unpacked)]
    if cost.kind == "conv":
        return _of_convolution(cost, gpu, efficiency)
    reached = _rate(cost, gpu, efficiency)
    return [] if reached is None else [_Way(reached, unpacked)]


def _of_convolution(cost: OpCost, gpu: GpuFacts, efficiency: Efficiency) -> Sequence[_Way]:
    large = _large_rate(cost.dtype, gpu, efficiency)
    if large is None:
        return []
    plain = gpu.fp32_flops and gpu.fp32_flops * efficiency.float32
    if cost.dtype == "float32":
        # TF32 is on by default: torch.backends.cudnn.allow_tf32, unlike that of products.
        rates = Rates(gpu.tf32_flops and gpu.tf32_flops * efficiency.tensor, large)
    elif _is_pascal(gpu) or (cost.dtype == "bfloat16" and efficiency.emulated_bfloat16):
        rates = Rates(None, large)
    else:
        rates = Rates(large, plain)
    if not cost.shape or cost.filter is None:
        relaid = cost.relaid_bytes / RELAYING
        ways = [rates.tensor and _Way(rates.tensor, relaid), rates.plain and _Way(rates.plain, 0)]
        return [way for way in ways if way]
    assert gpu.bandwidth_bytes_per_s
    time = convolution_time(cost, gpu, rates, efficiency.bandwidth * gpu.bandwidth_bytes_per_s)
    return [] if time is None else [_Way(cost.flops / time.seconds, time.prepared_bytes)]


def _is_pascal(gpu: GpuFacts) -> bool:
    """Pascal has no tensor cores: float16 products are as fast as float32."""
    return (gpu.compute_capability or "").startswith("6.")


def _large_rate(dtype: str, gpu: GpuFacts, efficiency: Efficiency) -> float | None:
    """FLOP/s of large products of a type; None if their peak is unknown."""
    if dtype == "bfloat16" and efficiency.emulated_bfloat16:
        plain = gpu.fp32_flops
        return None if plain is None else plain * efficiency.emulated_bfloat16
    peak, share = {
        "bfloat16": (gpu.bf16_flops, efficiency.tensor),
        "float16": (gpu.fp32_flops if _is_pascal(gpu) else gpu.fp16_flops, efficiency.tensor),
        "float32": (gpu.fp32_flops, efficiency.float32),
        TF32: (
            (gpu.tf32_flops, efficiency.tensor)
            if gpu.tf32_flops
            else (gpu.fp32_flops, efficiency.float32)
        ),
        # On paper twice the rate, but bitsandbytes loses the gain to scaling; int8 peaks are not
        # among the facts.
        "int8": (gpu.fp16_flops, efficiency.tensor),
        "float8_e4m3fn": (gpu.fp8_flops, efficiency.tensor),
        "float8_e5m2": (gpu.fp8_flops, efficiency.tensor),
    }.get(dtype, (None, 0.0))
    return None if peak is None else peak * share


def _rate(cost: OpCost, gpu: GpuFacts, efficiency: Efficiency) -> float | None:
    """FLOP/s that a product or attention reaches; None if its peak is unknown."""
    large = _large_rate(cost.dtype, gpu, efficiency)
    if large is None or (cost.dtype == "bfloat16" and efficiency.emulated_bfloat16):
        return large
    attention = attention_of(cost.name, gpu) if cost.kind == "attention" else None
    if attention is not None and cost.dtype != "float32":
        peak = large / efficiency.tensor
        if cost.dtype.startswith("float8") and gpu.bf16_flops is not None:
            peak = gpu.bf16_flops * attention.fp8
        return peak * attention.share(cost.shape, backward="backward" in cost.name)
    share = grouped_share(cost.name, gpu.compute_capability)
    item = element_bytes(cost.dtype)
    return large * share * share_of_rate(cost.shape, item, gpu.multiprocessors)


def _least_s(cost: OpCost, gpu: GpuFacts, efficiency: Efficiency) -> float:
    """Seconds that the arithmetic of an operator takes at least, whatever was measured elsewhere.

    0 if its peak is unknown, and on a CPU, whose peaks are what was measured.
    """
    peaks = {
        "bfloat16": gpu.bf16_flops,
        "float16": gpu.fp16_flops,
        "float32": gpu.tf32_flops or gpu.fp32_flops,
        TF32: gpu.tf32_flops,
    }
    peak = peaks.get(cost.dtype)
    if not peak or gpu.vendor == CPU:
        return 0.0
    return cost.flops / (MOST_OF_PEAK * peak * max(1.0, efficiency.tensor))


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
    """The first row for the card's compute capability whose word is in its name.

    The peaks of a CPU are what was measured on it.
    """
    if gpu.vendor == CPU:
        return Efficiency(1.0, 1.0, 1.0)
    words = ("", *gpu.name.split())
    rows = (row for row in _table() if gpu.compute_capability in row[0] and row[1] in words)
    return next((efficiency for _, _, efficiency in rows), None)
