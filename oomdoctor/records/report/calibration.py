"""What `probe --calibrate` reports: operators of a device, and how exact estimates with them are.

The field names are the JSON keys. Times are in seconds, unknown is None.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from oomdoctor.records.job.device_times import Clock

OperatorTerm = Literal["products", "attention", "convolutions", "pointwise", "strided", "copies"]


@dataclass(frozen=True, slots=True)
class MeasuredTerm:
    """Operators of a kind and type, each measured alone.

    The best rate is in FLOP/s (products and attention) or bytes/s. `spread` is the median of their
    relative spreads, and `factor` that of measured / estimated time. On an emulated GPU all are
    None. "strided" are pointwise operators whose tensors differ in shape, layout or type.
    """

    term: OperatorTerm
    dtype: str
    operators: int
    best_flops_per_s: float | None
    best_bytes_per_s: float | None
    spread: float | None
    factor: float | None


@dataclass(frozen=True, slots=True)
class CheckedStep:
    """A training step of a small model: measured, and estimated with the measured operators.

    `uncalibrated_s` is the estimate without them; None on the CPU, which has none. `error` is
    estimated / measured - 1.
    """

    model: str
    measured_s: float
    estimated_s: float | None
    uncalibrated_s: float | None
    error: float | None


@dataclass(frozen=True, slots=True)
class CalibrationAnswer:
    """What was measured on a device.

    `kept` says whether later estimates use it; if not, `reason` says why. `clock` is "device" for
    the time on the GPU, "wall" for elapsed time, and "cpu" for the CPU time of the only thread.
    `launch_s` are the seconds that an operator on one element takes. `host_operator_s` is the step
    time of a tiny model per operator. `rounds` is how often each operator was measured.
    """

    device_name: str
    driver_version: str | None
    torch: str | None
    measured_at: str
    elapsed_s: float
    kept: bool
    reason: str | None
    clock: Clock
    rounds: int
    launch_s: float
    host_operator_s: float
    terms: tuple[MeasuredTerm, ...]
    steps: tuple[CheckedStep, ...]
