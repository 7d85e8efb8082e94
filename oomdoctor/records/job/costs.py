"""What operators cost, and how long they are estimated to take.

A cost depends on the operator and its tensors, not on the card: `analysis.speed.roofline` computes
the time from costs and the facts of a card. All amounts add up and are affine in the micro-batch
size, so two simulated sizes give all sizes between them.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

from oomdoctor.records.facts.dtypes import SIZES

TF32 = "tensorfloat32"
"""Float32 products with `torch.set_float32_matmul_precision("high")`, if the card can do that."""
OpKind = Literal["matmul", "attention", "conv", "quantised", "elementwise", "irregular", "copy"]
Bound = Literal["compute", "bandwidth", "launch"]


def element_bytes(dtype: str) -> int:
    """Bytes of one element of a type that a cost names; types without a row have one (float8)."""
    return SIZES.get("float32" if dtype == TF32 else dtype, 1)


@dataclass(frozen=True, slots=True)
class Filter:
    """What a convolution slides over its input: how many `taps` it has, and its stride.

    `width` is that of the input, `places` those of one result (height x width).
    """

    taps: int
    is_square: bool
    stride: int
    width: int
    places: int
    channels_last: bool


@dataclass(frozen=True, slots=True)
class OpCost:
    """One launched operator: arithmetic in FLOP, traffic to and from device memory in bytes.

    "quantised" covers bitsandbytes' packing, unpacking and 4-bit products. "elementwise" operators
    are limited by bandwidth (activations, optimizers); "irregular" ones too, but their tensors
    differ in size, layout or type (broadcasts, casts, reductions, gathers). "copy" moves data
    between host and device. `dtype` is torch's name of the type that the arithmetic is done in, or
    `TF32`.
    `unpacked_bytes` are moved by a separate kernel that unpacks the weight of a 4-bit product.
    `relaid_bytes` are moved by kernels that bring what a convolution reads from NCHW into the
    layout of tensor cores, if it runs on them.
    `shape` is (batch, m, n, k) of a product or of those that a convolution is, one for each group;
    and (rows x heads, length, keys, width of a head, 1 if causal) of attention. It is empty for
    others, or if it is unknown. `filter` is that of a convolution with a shape.
    """

    name: str
    kind: OpKind
    dtype: str
    flops: float
    bytes_moved: float
    unpacked_bytes: float = 0.0
    shape: tuple[int, ...] = ()
    relaid_bytes: float = 0.0
    filter: Filter | None = None


@dataclass(frozen=True, slots=True)
class KernelFactor:
    """Measured / estimated time of an operator that ran alone on a device."""

    cost: OpCost
    factor: float


@dataclass(frozen=True, slots=True)
class Calibration:
    """Measured / estimated time on one machine, by what limits the speed; 1.0 is uncalibrated.

    `kernels`, `ramp` and `host` are from `probe --calibrate`: single operators, what a kernel takes
    on top of its work, and the host's time for an operator. `error` is the largest relative error
    of the training steps that were then estimated and measured; None if there were none. The others
    are from measured configurations, and correct what the first ones leave.
    """

    compute: float = 1.0
    bandwidth: float = 1.0
    launch: float = 1.0
    kernels: tuple[KernelFactor, ...] = ()
    ramp: float = 1.0
    host: float = 1.0
    error: float | None = None


@dataclass(frozen=True, slots=True)
class LearnedFactors:
    """Measured / estimated time of configurations, by what limits it; 1.0 changes nothing."""

    compute: float = 1.0
    bandwidth: float = 1.0
    launch: float = 1.0


@dataclass(frozen=True, slots=True)
class CalibratedBy:
    """The probe whose measured times correct an estimate.

    `run` is the name of the run and `date` its time in UTC, ISO 8601; None if an older version did
    not store them. `cap_bytes` is the --vram of that run. `timed_at` is when `probe --calibrate`
    measured single operators; None if it did not. With `relative`, that was on another card of the
    same architecture. The factors correct what it leaves.
    """

    run: str | None
    date: str | None
    gpu_name: str
    cap_bytes: int | None
    factors: LearnedFactors
    timed_at: str | None = None
    relative: bool = False


@dataclass(frozen=True, slots=True)
class EstimatedTime:
    """The estimated time of a sequence of operators, and its parts.

    `seconds` is the larger of the device's and the host's time, because the host runs ahead of the
    device. `bound_by` gives the shares of `seconds`, which add up to 1; the ramps of kernels are
    launches. In `kernels_bound_by` they belong to their kernels.
    """

    seconds: float
    device_s: float
    host_s: float
    bound_by: Mapping[Bound, float]
    kernels_bound_by: Mapping[Bound, float]
