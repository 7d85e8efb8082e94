"""Time of a sequence of operators on a card, from what they cost and what the card can do.

    kernel   = ramp + max(FLOPs / (efficiency x peak), bytes / (efficiency x bandwidth))
    sequence = max(sum of kernels, operators x host time of one)

Kernels of one stream follow each other, so their times add up; within one, arithmetic overlaps with
memory traffic, so the larger counts. The host issues operators ahead of the device: it costs time
only where it is the slower of the two. What is left out: other streams, power and heat beyond what
the efficiencies were measured with, and the waves that a small product does not fill.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

from oomdoctor.analysis.efficiency import Efficiency, efficiency_of
from oomdoctor.records.costs import Bound, Calibration, EstimatedTime, OpCost

if TYPE_CHECKING:
    from oomdoctor.records.machine import GpuFacts

# Seconds in which a kernel fills the card and drains, beside its work. From copies of 34 and 235 MB
# in 12.1 and 42.9 us on a GB200 (github pytorch/ao#4247: 7 us and 6.5 TB/s) and products of 1024^3
# at 106-127 of 165 TFLOP/s on an RTX 4090 (github zzc0721/torch-performance-test-data#78: 4-7 us).
RAMP_S = 5e-6
# Seconds of the host for one operator of a transformers model in eager mode, Python, autograd and
# checkpointing included. LoRA of Qwen-1.8B and 7B takes 125 and 150 ms a micro-step however short
# the sequence (README of github QwenLM/Qwen, A100) in 8,900 and 11,900 operators: 14 and 13 us. A
# token of a small model, which only the host bounds, takes 0.48-0.51 ms a layer on an RTX 5090
# (github bitsandbytes#1851, three models) in about 42 operators: 12 us.
HOST_S = 13e-6
# Between the host and the card, in bytes/s. PCIe 3.0, 4.0 and 5.0 x16 move 12-13, 24-26 and 50-55
# GB/s from pinned memory; facts of cards do not tell the slot, and cards sit in older ones.
LINK_BYTES_PER_S = {"6": 12e9, "7": 12e9, "8": 22e9, "9": 45e9, "10": 45e9, "12": 40e9}
# Relative, by what binds: how far the sources of the constants above are apart.
UNCERTAINTY: dict[Bound, float] = {"compute": 0.25, "bandwidth": 0.3, "launch": 0.5}


def estimate(
    costs: Iterable[OpCost],
    gpu: GpuFacts,
    calibration: Calibration | None = None,
    *,
    host_s: float = HOST_S,
) -> EstimatedTime | None:
    """Seconds of the operators in eager mode; call it for a micro-step and for an optimizer step.

    None where the card's bandwidth or the peak for a type that the operators multiply in is not
    known, and for cards without a row in the table of efficiencies (AMD).
    """
    factors = calibration or Calibration()
    efficiency = efficiency_of(gpu)
    if efficiency is None or not gpu.bandwidth_bytes_per_s:
        return None
    bandwidth = efficiency.bandwidth * gpu.bandwidth_bytes_per_s
    spent: dict[Bound, float] = {"compute": 0.0, "bandwidth": 0.0, "launch": 0.0}
    rates: dict[tuple[str, str], float | None] = {}
    operators = 0
    for cost in costs:
        operators += 1
        link = _link(gpu) if cost.kind == "copy" else bandwidth
        moving = cost.bytes_moved / link * factors.bandwidth
        computing = 0.0
        if cost.flops:
            kind = (cost.kind, cost.dtype)
            if kind not in rates:
                rates[kind] = _rate(cost, gpu, efficiency)
            rate = rates[kind]
            if rate is None:
                return None
            computing = cost.flops / rate * factors.compute
        spent["compute" if computing > moving else "bandwidth"] += max(computing, moving)
        spent["launch"] += RAMP_S * factors.launch
    return _summed(spent, operators, operators * host_s * factors.launch, efficiency, rates)


def _summed(
    spent: dict[Bound, float],
    operators: int,
    host: float,
    efficiency: Efficiency,
    rates: dict[tuple[str, str], float | None],
) -> EstimatedTime:
    device = sum(spent.values())
    shares: dict[Bound, float] = {"compute": 0.0, "bandwidth": 0.0, "launch": 1.0}
    if device > host:
        shares = {bound: seconds / device for bound, seconds in spent.items()}
    notes = []
    if host >= device and operators:
        notes.append("the host issues operators more slowly than the card runs them")
    if not efficiency.native_bfloat16 and any(dtype == "bfloat16" for _, dtype in rates):
        notes.append("this card emulates bfloat16, slower than float32; float16 is native")
    spread = sum(UNCERTAINTY[bound] * share for bound, share in shares.items())
    return EstimatedTime(
        seconds=max(device, host),
        device_s=device,
        host_s=host,
        operators=operators,
        bound_by=shares,
        uncertainty=spread * (1 if efficiency.measured else 1.5),
        notes=tuple(notes),
    )


def _rate(cost: OpCost, gpu: GpuFacts, efficiency: Efficiency) -> float | None:
    """FLOP/s that this kind of arithmetic reaches; None where its peak is not known."""
    if cost.dtype == "bfloat16" and not efficiency.native_bfloat16:
        plain = gpu.fp32_flops
        return None if plain is None else plain * efficiency.emulated_bfloat16
    peak, share = {
        "bfloat16": (gpu.bf16_flops, efficiency.tensor),
        "float16": (_float16_peak(gpu), efficiency.tensor),
        "float32": (gpu.fp32_flops, efficiency.float32),
        # Twice the rate on paper, but bitsandbytes spends the gain on scaling; int8 peaks are no
        # part of the facts.
        "int8": (gpu.fp16_flops, efficiency.tensor),
        "float8_e4m3fn": (gpu.fp8_flops, efficiency.tensor),
        "float8_e5m2": (gpu.fp8_flops, efficiency.tensor),
    }.get(cost.dtype, (None, 0.0))
    if peak is None:
        return None
    if cost.kind == "attention" and cost.dtype != "float32":
        return peak * efficiency.attention
    return peak * share


def _float16_peak(gpu: GpuFacts) -> float | None:
    """Pascal has no tensor cores: float16 products are accumulated in, and as fast as, float32."""
    pascal = (gpu.compute_capability or "").startswith("6.")
    return gpu.fp32_flops if pascal else gpu.fp16_flops


def _link(gpu: GpuFacts) -> float:
    major = (gpu.compute_capability or "").partition(".")[0]
    return LINK_BYTES_PER_S.get(major, LINK_BYTES_PER_S["6"])
