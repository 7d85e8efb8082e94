"""What operators cost and how long they are expected to take.

A cost is a property of the operator and its tensors, not of a card: `analysis.roofline` turns costs
and the facts of a card into time. All amounts add up and are affine in the micro-batch size, so two
simulated batch sizes tell every one between them.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

OpKind = Literal["matmul", "attention", "conv", "quantised", "elementwise", "irregular", "copy"]
Bound = Literal["compute", "bandwidth", "launch"]


@dataclass(frozen=True, slots=True)
class OpCost:
    """One launched operator: arithmetic in FLOP, traffic to and from device memory in bytes.

    "quantised" covers bitsandbytes' packing, unpacking and 4-bit products, "elementwise" what is
    bound by bandwidth (activations, optimizers), "irregular" the same where tensors differ in
    size, layout or type (broadcasts, casts, reductions, gathers), "copy" what crosses between the
    host and the device. `dtype` is torch's name of the type the arithmetic is done in.
    `unpacked_bytes` are moved by a kernel of its own that unpacks the weight of a 4-bit product.
    """

    name: str
    kind: OpKind
    dtype: str
    flops: float
    bytes_moved: float
    unpacked_bytes: float = 0.0


@dataclass(frozen=True, slots=True)
class Calibration:
    """Measured over predicted time on one machine, by what binds; 1.0 is uncalibrated."""

    compute: float = 1.0
    bandwidth: float = 1.0
    launch: float = 1.0


@dataclass(frozen=True, slots=True)
class EstimatedTime:
    """Predicted seconds of a sequence of operators, and what they are made of.

    `seconds` is the larger of the device's and the host's time, because the host runs ahead of the
    device. `bound_by` gives the shares of `seconds` and adds up to 1. `notes` are sentences for the
    report.
    """

    seconds: float
    device_s: float
    host_s: float
    operators: int
    bound_by: Mapping[Bound, float]
    notes: tuple[str, ...]
