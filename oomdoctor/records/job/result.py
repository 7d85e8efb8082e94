"""A job for one worker process, its reply, and the results that the survey derives from it.

Sizes are integers in bytes, times floats in seconds, unknown is None. Field names of `ProbeResult`
are the public JSON keys.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

from oomdoctor.records.codec import shared
from oomdoctor.records.configuration.config import TrainConfig
from oomdoctor.records.job.costs import CalibratedBy
from oomdoctor.records.job.dataset import CountedRows, LengthsRequest, TrainingTime
from oomdoctor.records.job.device_times import DeviceTimes
from oomdoctor.records.job.machine import DeviceType
from oomdoctor.records.job.measurement import (
    Breakdown,
    Measurement,
    OomEvent,
    PhaseMemory,
    RankPeak,
    deciding_peak,
)
from oomdoctor.records.job.model import LayerStack, ModelSpec, ParameterCounts
from oomdoctor.records.job.simulation import Prediction, SimulationRequest

Mode = Literal["inspect", "measure", "simulate", "lengths", "record", "calibrate"]
FileKind = Literal["snapshot", "trace"]
FILE_ENDINGS: Mapping[FileKind, str] = {"snapshot": "pickle", "trace": "json"}
WeightsChoice = Literal["synthetic", "pretrained"]
Outcome = Literal[
    "fits", "oom", "host_oom", "unsupported", "failed", "crashed", "timed_out", "skipped"
]
OUTCOME_WORDS: dict[Outcome, str] = {
    "fits": "fits",
    "oom": "out of memory",
    "host_oom": "out of host memory",
    "unsupported": "not supported",
    "failed": "failed",
    "crashed": "crashed",
    "timed_out": "timed out",
    "skipped": "skipped",
}
Evidence = Literal["measured", "emulated", "predicted"]
SpeedState = Literal["settled", "not_settled", "not_believable", "estimated"]


@dataclass(frozen=True, slots=True)
class RecordingRequest:
    """What a worker has to write of a few steps: a memory snapshot, or a trace of a step."""

    kind: FileKind
    file: str


@dataclass(frozen=True, slots=True)
class ProbeJob:
    """Everything one worker process needs; written as job.json.

    `config.micro_batch_size` is an integer except in two modes: "inspect" builds the model on the
    meta device and reports counts, versions and the device; "lengths" counts the tokens of a data
    file. `budget_bytes` is what the process may use, without the headroom. It is enforced: by the
    allocator's fraction on CUDA, by the allocation trace on the CPU. `device_id` identifies the
    device when a run is resumed. Steps are `timed`, except on an emulated GPU, which runs no
    kernels. Of a training on several GPUs every rank runs, or with `alone` only the first one, for
    which an emulated GPU stands in for the others. The ranks are spread evenly over `nodes`
    machines of a Slurm job. vLLM in the same process takes `vllm_bytes` of the device.
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
    timed: bool = True
    timing_limit_s: float = 20.0
    min_timed_steps: int = 5
    max_timed_steps: int = 20
    spread_target: float = 0.02
    simulation: SimulationRequest | None = None
    lengths: LengthsRequest | None = None
    recording: RecordingRequest | None = None
    alone: bool = False
    nodes: int = 1
    vllm_bytes: int = 0


@dataclass(frozen=True, slots=True)
class Failure:
    """How a worker ended without a measurement; `log_tail` is the end of its output."""

    code: str
    message: str
    exit_code: int | None = None
    signal: str | None = None
    last_phase: str | None = None
    log_tail: str = ""


@dataclass(frozen=True, slots=True)
class Inspection:
    """What a worker finds out about the model, the user's interpreter and the device.

    `lora_targets` are the layers to name where peft does not take `all-linear`; empty where it
    does, or where nobody asked. `positions` are those that config.json states, and
    `max_sequence_length` is the longest row that the model's code takes; None if it takes any.
    """

    architecture: str
    parameters: ParameterCounts
    max_sequence_length: int | None
    versions: Mapping[str, str | None]
    device_name: str | None
    device_total_bytes: int | None
    device_free_bytes: int | None
    compute_capability: str | None
    stacks: tuple[LayerStack, ...] = ()
    lora_targets: tuple[str, ...] = ()
    positions: int | None = None


@dataclass(frozen=True, slots=True)
class Reply:
    """A worker's reply, written as reply.json. The worker reports; the survey decides."""

    status: Literal[
        "inspected", "measured", "predicted", "counted", "recorded", "oom", "host_oom",
        "calibrated", "unsupported", "failed",
    ]  # fmt: skip
    measurement: Measurement | None = None
    predictions: tuple[Prediction, ...] = ()
    inspection: Inspection | None = None
    lengths: CountedRows | None = None
    times: DeviceTimes | None = None
    oom: OomEvent | None = None
    failure: Failure | None = None
    reason: str | None = None


@dataclass(frozen=True, slots=True)
class Attempt:
    """How one worker process ended, in every case.

    `cached_at` is when the simulation behind it ran, if an earlier run did it. `borderline` says
    why it may as well end otherwise; None if the outcome is sure.
    """

    config: TrainConfig
    outcome: Outcome
    measurement: Measurement | None
    oom: OomEvent | None
    failure: Failure | None
    reason: str | None
    elapsed_s: float
    folder: str | None = None
    cached_at: str | None = None
    borderline: str | None = None

    @property
    def surely_fits(self) -> bool:
        """Whether it fits by more than the error of the prediction, if it is one."""
        return self.outcome == "fits" and self.borderline is None


def refused(config: TrainConfig, reason: str) -> Attempt:
    """The attempt at a configuration that is not started, because it cannot run."""
    return Attempt(config, "unsupported", None, None, None, reason, 0.0)


@dataclass(frozen=True, slots=True)
class Try:
    """One micro-batch size that was tried for a configuration, for the report.

    `peak_is_lower_bound` if `peak_bytes` leaves out what the allocator holds beyond the tensors.
    """

    micro_batch_size: int
    outcome: Outcome
    peak_bytes: int | None
    tokens_per_s: float | None
    reason: str | None
    peak_is_lower_bound: bool = False
    borderline: bool = False


@dataclass(frozen=True, slots=True)
class PredictedPeak:
    """The predicted peaks of a configuration; None if nothing was predicted."""

    peak_allocated_bytes: int | None
    peak_reserved_bytes: int | None
    peak_device_bytes: int | None

    @classmethod
    def of(cls, predicted: Measurement | None) -> PredictedPeak | None:
        """The peaks of what a simulation says in place of a measurement."""
        return None if predicted is None else cls(**shared(predicted, cls))

    def deciding_peak_bytes(self) -> int | None:
        """The peak that is compared with the budget, as for a measurement."""
        of_allocator = (self.peak_reserved_bytes, self.peak_allocated_bytes)
        return deciding_peak(self.peak_device_bytes, *of_allocator)


@dataclass(frozen=True, slots=True)
class ProbeResult:
    """One row of the report: a configuration at its chosen micro-batch size.

    A simulated configuration that does not fit has the peaks of a device with room for it. A
    `borderline` one is closer to the limit than the prediction error, so it may as well end
    otherwise. `missed_by_bytes` is by how much the smallest try was short, if known. `speed_state`
    says how far the times can be trusted: those that did not settle are not ranked. Times that are
    not believable give no speed at all. `cached_at` is when the simulation behind it ran, if an
    earlier run did it. `calibrated_by` is the probe that corrected an estimated speed.
    `training_time` is the time for the user's own data. On several GPUs, the peaks are from the
    rank that needs the most, `ranks` has each rank that ran, and `host_peak_bytes` is the host
    memory of a node.
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
    speed_state: SpeedState | None = None
    cached_at: str | None = None
    calibrated_by: CalibratedBy | None = None
    training_time: TrainingTime | None = None
    ranks: tuple[RankPeak, ...] = ()
    host_peak_bytes: int | None = None
    borderline: bool = False

    @property
    def surely_fits(self) -> bool:
        """Whether it fits by more than the error of the prediction, if it is one."""
        return self.outcome == "fits" and not self.borderline

    def deciding_peak_bytes(self) -> int | None:
        """The peak that was compared with the budget; None without a measurement."""
        of_allocator = (self.peak_reserved_bytes, self.peak_allocated_bytes)
        return deciding_peak(self.peak_device_bytes, *of_allocator)
