"""A job for one worker process, what the worker answers, and what the survey makes of it.

Sizes are integers in bytes, times floats in seconds, unknown is None. Field names of `ProbeResult`
are the public JSON keys.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

from oomdoctor.records.config import TrainConfig
from oomdoctor.records.model import ModelSpec, ParameterCounts

Mode = Literal["inspect", "measure"]
DeviceType = Literal["cuda", "cpu"]
WeightsChoice = Literal["synthetic", "pretrained"]
PhaseName = Literal["init", "load", "forward", "backward", "optimizer", "eval", "done"]
Outcome = Literal[
    "fits", "oom", "host_oom", "unsupported", "failed", "crashed", "timed_out", "skipped"
]
Evidence = Literal["measured", "predicted"]


@dataclass(frozen=True, slots=True)
class ProbeJob:
    """Everything one worker process needs; written as job.json.

    `config.micro_batch_size` is an integer except in mode "inspect", which builds the model on the
    meta device and reports counts, versions and the device. `budget_bytes` is what the process may
    use, headroom taken off; it is enforced (allocator fraction on CUDA, the allocation trace on the
    CPU). `device_id` tells devices apart when a run is resumed.
    """

    mode: Mode
    label: str
    model: ModelSpec
    config: TrainConfig
    device_type: DeviceType
    budget_bytes: int | None = None
    device_id: str | None = None
    weights: WeightsChoice = "synthetic"
    evaluate: bool = False
    eval_batch_size: int = 8
    seed: int = 0
    timing_limit_s: float = 20.0
    min_timed_steps: int = 5
    max_timed_steps: int = 20
    spread_target: float = 0.02


@dataclass(frozen=True, slots=True)
class PhaseMemory:
    """Peaks within one phase, the worst over all memory steps. Reserved is None on the CPU."""

    peak_allocated_bytes: int
    peak_reserved_bytes: int | None = None


@dataclass(frozen=True, slots=True)
class Breakdown:
    """What was alive at the moment of the highest allocation; adds up to the peak allocated."""

    weights_bytes: int
    gradients_bytes: int
    optimizer_bytes: int
    activations_bytes: int
    logits_bytes: int
    other_bytes: int


@dataclass(frozen=True, slots=True)
class Timing:
    """Times of the timed steps, after warm-up; medians with a relative spread.

    A spread is half the distance between the quartiles (below eight samples half the range),
    divided by the median; None for fewer than two samples. `stopped_by` says why timing ended.
    """

    micro_step_s: float
    micro_step_spread: float | None
    optimizer_step_s: float
    optimizer_step_spread: float | None
    first_untraced_step_s: float
    warmup_steps: int
    timed_steps: int
    stopped_by: Literal["spread", "step_limit", "time_limit"]


@dataclass(frozen=True, slots=True)
class Measurement:
    """What one worker measured at one micro-batch size.

    `peak_device_bytes` is what the device really gave up for this process, context and libraries
    included (None on the CPU); `overhead_bytes` the part of it outside the caching allocator.
    `peak_rss_bytes` is the host memory of the process. `phases` has the keys load, forward,
    backward, optimizer and, when asked for, eval; `first_step` and `steady` hold the same peaks
    for the step in which optimizer states are born and for the later ones.
    """

    peak_allocated_bytes: int
    peak_reserved_bytes: int | None
    peak_device_bytes: int | None
    overhead_bytes: int | None
    peak_rss_bytes: int | None
    peak_phase: PhaseName
    phases: Mapping[str, PhaseMemory]
    first_step: Mapping[str, PhaseMemory]
    steady: Mapping[str, PhaseMemory]
    breakdown: Breakdown | None
    allocation_retries: int | None
    managed_bytes: int
    timing: Timing | None
    attention_kernel: str | None
    trainable_parameters: int
    parameters: int
    losses: tuple[float, ...]
    skipped_optimizer_steps: int
    notes: tuple[str, ...]
    versions: Mapping[str, str | None]
    memory_stats: Mapping[str, int] = field(default_factory=dict)

    def deciding_peak_bytes(self) -> int:
        """The peak that is held against the budget: the widest that is known.

        Device use on a GPU, else what the allocator reserved, tensor bytes on the CPU.
        """
        known = (self.peak_device_bytes, self.peak_reserved_bytes)
        return next((peak for peak in known if peak is not None), self.peak_allocated_bytes)


@dataclass(frozen=True, slots=True)
class OomEvent:
    """One out-of-memory message read into numbers; every figure as printed x unit, in bytes."""

    message: str
    dialect: str
    phase: str
    requested_bytes: int | None = None
    capacity_bytes: int | None = None
    free_bytes: int | None = None
    process_bytes: int | None = None
    allocated_bytes: int | None = None
    reserved_bytes: int | None = None
    reserved_unallocated_bytes: int | None = None
    private_pools_bytes: int | None = None
    allowed_bytes: int | None = None
    other_processes_bytes: int | None = None


@dataclass(frozen=True, slots=True)
class Failure:
    """How a worker ended when it gave no measurement; `log_tail` is the end of its output."""

    code: str
    message: str
    exit_code: int | None = None
    signal: str | None = None
    last_phase: str | None = None
    log_tail: str = ""


@dataclass(frozen=True, slots=True)
class Inspection:
    """What the user's interpreter and device look like from inside a worker."""

    architecture: str
    parameters: ParameterCounts
    max_sequence_length: int | None
    versions: Mapping[str, str | None]
    device_name: str | None
    device_total_bytes: int | None
    device_free_bytes: int | None
    compute_capability: str | None


@dataclass(frozen=True, slots=True)
class Reply:
    """A worker's answer, written as reply.json. The worker reports; the survey judges."""

    status: Literal["inspected", "measured", "oom", "host_oom", "unsupported", "failed"]
    measurement: Measurement | None = None
    inspection: Inspection | None = None
    oom: OomEvent | None = None
    failure: Failure | None = None
    reason: str | None = None


@dataclass(frozen=True, slots=True)
class Attempt:
    """How one worker process ended: the total outcome of launching one job."""

    config: TrainConfig
    outcome: Outcome
    measurement: Measurement | None
    oom: OomEvent | None
    failure: Failure | None
    reason: str | None
    elapsed_s: float
    folder: str | None = None


@dataclass(frozen=True, slots=True)
class Try:
    """One micro-batch size that was tried within a rung, for the report."""

    micro_batch_size: int
    outcome: Outcome
    peak_bytes: int | None
    tokens_per_s: float | None
    reason: str | None


@dataclass(frozen=True, slots=True)
class PredictedPeak:
    """What the simulator expected of a rung (None where nothing was predicted)."""

    peak_allocated_bytes: int | None
    peak_reserved_bytes: int | None
    peak_device_bytes: int | None


@dataclass(frozen=True, slots=True)
class ProbeResult:
    """One row of the report: the chosen micro-batch of a rung and everything known about it.

    `missed_by_bytes` is how much the leanest try lacked, where that is known.
    """

    key: str
    label: str
    config: TrainConfig
    outcome: Outcome
    evidence: Evidence
    micro_batch_size: int | None
    gradient_accumulation_steps: int | None
    effective_batch_size: int
    sequence_length: int
    peak_allocated_bytes: int | None
    peak_reserved_bytes: int | None
    peak_device_bytes: int | None
    peak_rss_bytes: int | None
    peak_phase: str | None
    phases: Mapping[str, PhaseMemory]
    breakdown: Breakdown | None
    tokens_per_s: float | None
    tokens_per_s_spread: float | None
    samples_per_s: float | None
    micro_step_s: float | None
    optimizer_step_s: float | None
    tokens_time_s: float | None
    mfu: float | None
    trainable_parameters: int | None
    attention_kernel: str | None
    max_micro_batch_size: int | None
    fastest_micro_batch_size: int | None
    missed_by_bytes: int | None
    measurement: Measurement | None
    tries: tuple[Try, ...]
    predicted: PredictedPeak | None
    oom: OomEvent | None
    failure: Failure | None
    reason: str | None
    notes: tuple[str, ...]
    elapsed_s: float

    def deciding_peak_bytes(self) -> int | None:
        """The peak that was held against the budget, as of its measurement; None without one."""
        known = (self.peak_device_bytes, self.peak_reserved_bytes, self.peak_allocated_bytes)
        return next((peak for peak in known if peak is not None), None)
