"""What a card can do at most: no training is faster than its arithmetic and its memory allow.

A measured time that implies more is wrong: the clock is, or the device is not what it says it is.
The figures are lower bounds of the work, so a true time is never called wrong:

    compute    model FLOPs (`flops_per_token`, half of the scores) over the dense peak of the card
    bandwidth  every weight read in the forward and in the backward pass of each micro-step, and
               weights, gradients and optimizer states of what is trained once a step
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from oomdoctor.analysis.memory.closed_form import (
    packed_bytes,
    shards_of,
    state_width,
    trained_bytes_of,
)
from oomdoctor.analysis.speed.roofline import CPU, MOST_OF_PEAK, efficiency_of
from oomdoctor.analysis.speed.throughput import (
    CountedModel,
    mfu,
    multiplied_parameters,
    peaks_by_dtype,
    step_seconds,
    tokens_per_s,
)
from oomdoctor.records.configuration.adapters import compute_dtype, saved_dtype
from oomdoctor.records.configuration.config import TrainConfig
from oomdoctor.records.facts.dtypes import dtype_bytes
from oomdoctor.records.job.costs import TF32, Calibration
from oomdoctor.records.job.device_times import MeasuredKernel
from oomdoctor.records.job.machine import GpuFacts
from oomdoctor.records.job.measurement import Timing


@dataclass(frozen=True, slots=True)
class PeakShares:
    """The least share of the card's peaks that a time implies; None if the peak is unknown."""

    compute: float | None
    bandwidth: float | None

    def believable(self) -> bool:
        """Whether a card can do that."""
        shares = [share for share in (self.compute, self.bandwidth) if share is not None]
        return all(share <= MOST_OF_PEAK for share in shares)

    def highest(self) -> tuple[float, str]:
        """The higher share, and of what it is; (0, "") if both are unknown."""
        named = [(self.compute, "arithmetic peak"), (self.bandwidth, "memory bandwidth")]
        return max(((share, name) for share, name in named if share is not None), default=(0.0, ""))


def peak_shares(
    timing: Timing, config: TrainConfig, gpu: GpuFacts, model: CountedModel
) -> PeakShares:
    """The shares of the card's peaks that the times of a rung imply at least."""
    peak, rate = _highest_peak(config, gpu), tokens_per_s(timing, config, model.task)
    compute = mfu(rate, config, model, peak, attention=6)
    moved = _least_bytes(config, model)
    bandwidth = None
    if moved is not None and gpu.bandwidth_bytes_per_s:
        bandwidth = moved / step_seconds(timing, config) / gpu.bandwidth_bytes_per_s
    return PeakShares(compute, bandwidth)


def bounded(factors: Calibration, gpu: GpuFacts) -> Calibration:
    """The factors, raised where an estimate with them would exceed what the card can do."""
    least = [min(1.0, share / MOST_OF_PEAK) if share else 1.0 for share in _shares(gpu)]
    compute, bandwidth = max(factors.compute, least[0]), max(factors.bandwidth, least[1])
    return replace(factors, compute=compute, bandwidth=bandwidth)


def can_be_true(factors: Calibration, gpu: GpuFacts) -> bool:
    """Whether estimates with these factors stay below what the card can do."""
    limit = max(MOST_OF_PEAK, calibration_share(Calibration(), gpu))
    return calibration_share(factors, gpu) <= limit * (1 + 1e-9)


def calibration_share(factors: Calibration, gpu: GpuFacts) -> float:
    """The share of a peak that large operators reach in an estimate with these factors."""
    tensor, bandwidth = _shares(gpu)
    return max(tensor / factors.compute, bandwidth / factors.bandwidth)


def highest_share(kernel: MeasuredKernel, gpu: GpuFacts) -> float:
    """The share of the card's arithmetic that an operator reached; 0 if its peak is not known.

    What it moves says nothing: it may be in a cache. A CPU has no peak but what was measured.
    """
    peak = peaks_of_dtypes(gpu).get(kernel.cost.dtype)
    if not kernel.cost.flops or not peak or not kernel.seconds or gpu.vendor == CPU:
        return 0.0
    efficiency = efficiency_of(gpu)
    excess = max(1.0, efficiency.tensor) if efficiency is not None else 1.0
    return kernel.cost.flops / kernel.seconds / (peak * excess)


def _shares(gpu: GpuFacts) -> tuple[float, float]:
    """What large operators reach of the peaks of arithmetic and bandwidth; 0 if it is not known."""
    efficiency = efficiency_of(gpu)
    return (0.0, 0.0) if efficiency is None else (min(1.0, efficiency.tensor), efficiency.bandwidth)


def _highest_peak(config: TrainConfig, gpu: GpuFacts) -> float | None:
    """The most FLOP/s that the products of the rung may reach; None if unknown.

    GeForce cards exceed their published peaks by what `efficiency.tensor` is above one. TF32 may be
    on, and int8 products may run at twice the rate.
    """
    rates = peaks_of_dtypes(gpu)
    positive = [rate for rate in (rates[compute_dtype(config)], gpu.fp32_flops) if rate]
    if not positive or rates[compute_dtype(config)] is None:
        return None
    efficiency = efficiency_of(gpu)
    excess = max(1.0, efficiency.tensor) if efficiency is not None else 1.0
    return max(positive) * excess * (2 if config.quantization == "int8" else 1)


def peaks_of_dtypes(gpu: GpuFacts) -> dict[str, float | None]:
    """The peak of each type; float32 may be TF32."""
    return {
        **peaks_by_dtype(gpu),
        "float32": gpu.tf32_flops or gpu.fp32_flops,
        TF32: gpu.tf32_flops,
    }


def _least_bytes(config: TrainConfig, model: CountedModel) -> float | None:
    """Bytes between the card's memory and its cores in one optimizer step, at least."""
    multiplied, counts = multiplied_parameters(model, config), model.counts
    if multiplied is None or config.offload != "none":
        return None
    if config.method == "qlora":
        read = packed_bytes(int(min(multiplied, counts.linear)), config.quantization or "nf4")
    else:
        read = int(multiplied) * dtype_bytes(config.weights_dtype)
    whole = config.method == "full" and not config.frozen_layers
    trained = counts.total if whole else model.trainable or 0
    each = trained_bytes_of(config)
    if config.modules_to_save:  # they may be in another type than adapters
        each = min(each, dtype_bytes(saved_dtype(config)))
    states = state_width(config.optimizer, each) or 0
    # The gradient is read; the weight and its states are read and written, each GPU's shard.
    update = trained * (each + 2 * each + 2 * states) / shards_of(config)
    return 2.0 * read * config.accumulation_steps() + update
