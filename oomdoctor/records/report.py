"""The machine and the finished report. A report as JSON is the public document."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

from oomdoctor.records.config import Recipe
from oomdoctor.records.diagnosis import Diagnosis
from oomdoctor.records.model import ModelRef, ModelSource, Task
from oomdoctor.records.result import DeviceType, ProbeResult, WeightsChoice

SCHEMA = "oomdoctor/1"
Status = Literal["ok", "no", "partial", "error", "interrupted"]
RankBy = Literal["throughput", "memory", "micro-batch"]


@dataclass(frozen=True, slots=True)
class GpuProcess:
    """A process that holds memory of a GPU; name and bytes are None where the driver hides them."""

    pid: int
    name: str | None
    used_bytes: int | None


@dataclass(frozen=True, slots=True)
class Gpu:
    """One GPU as the driver reports it. `index` is NVML's, by PCI bus; `uuid` identifies it."""

    index: int
    uuid: str
    name: str
    total_bytes: int
    free_bytes: int | None
    compute_capability: str | None
    processes: tuple[GpuProcess, ...]


@dataclass(frozen=True, slots=True)
class GpuFacts:
    """Published facts of a card: peaks are dense, in FLOP/s; None where not verified.

    `memory_bytes` is the marketed size, `total_bytes` what the driver reports, and
    `torch_total_bytes` the smallest total that PyTorch was seen to report.
    """

    name: str
    aliases: tuple[str, ...]
    vendor: str
    architecture: str
    compute_capability: str | None
    memory_bytes: int
    total_bytes: int | None
    bandwidth_bytes_per_s: float | None
    fp32_flops: float | None
    tf32_flops: float | None
    fp16_flops: float | None
    bf16_flops: float | None
    fp8_flops: float | None
    notes: str
    torch_total_bytes: int | None = None


@dataclass(frozen=True, slots=True)
class Setting:
    """A value that steers oomdoctor or the libraries, and where it came from."""

    name: str
    value: str | None
    origin: str


@dataclass(frozen=True, slots=True)
class Capability:
    """A library or a hardware feature that some rungs need, and what follows for this machine.

    `text` is what it makes possible when the state is "ok", else what is lacking and the remedy.
    """

    name: str
    version: str | None
    state: Literal["ok", "missing", "unfit"]
    text: str


@dataclass(frozen=True, slots=True)
class Machine:
    """Where the survey ran. `device` is the chosen one: "cuda" or "cpu"."""

    device: DeviceType
    gpu_name: str | None
    gpu_uuid: str | None
    total_bytes: int
    compute_capability: str | None
    driver_version: str | None
    cpu_name: str | None
    cpu_count: int
    memory_bytes: int
    memory_available_bytes: int
    hostname: str
    slurm_job_id: str | None
    other_processes: tuple[GpuProcess, ...]
    versions: Mapping[str, str | None]


@dataclass(frozen=True, slots=True)
class ModelFacts:
    """The model as the report shows it."""

    id: str
    source: ModelSource
    architecture: str
    model_type: str
    task: Task
    parameters: int | None
    revision: str | None
    weights: WeightsChoice
    mixture_of_experts: bool


@dataclass(frozen=True, slots=True)
class Budget:
    """What a rung may use. `cap_bytes` is --vram; usable = min(free, cap) - headroom."""

    total_bytes: int
    cap_bytes: int | None
    free_bytes: int
    headroom_bytes: int
    usable_bytes: int


@dataclass(frozen=True, slots=True)
class SurveyRequest:
    """A survey as it was asked for, complete enough to go on with it (`--resume`).

    `device` is "auto", "cpu", "cuda", "cuda:N" or a GPU UUID. `micro_batch_size` None searches.
    `time_limit_s` bounds the survey, `rung_limit_s` one worker process. `python` is the
    interpreter the user trains with. `tokens` is the amount for which the report states the time.
    """

    model: ModelRef
    recipe: Recipe
    device: str
    vram_bytes: int | None
    headroom: float
    sequence_length: int
    effective_batch_size: int
    micro_batch_size: int | None
    weights: WeightsChoice
    evaluate: bool
    eval_batch_size: int
    rank_by: RankBy
    tokens: int
    time_limit_s: float | None
    rung_limit_s: float
    python: str
    seed: int


@dataclass(frozen=True, slots=True)
class Picks:
    """The key of the best rung of each method, because they are not the same training."""

    full: str | None
    lora: str | None
    qlora: str | None


@dataclass(frozen=True, slots=True)
class Ranking:
    """Keys of the rungs that fit, best first; why each stands where it does; a pick per method."""

    order: tuple[str, ...]
    reasons: Mapping[str, str]
    picks: Picks


@dataclass(frozen=True, slots=True)
class Tool:
    """The program that wrote the report."""

    name: str
    version: str


@dataclass(frozen=True, slots=True)
class Warn:
    """Something to know that did not stop the survey; `code` is a stable lower-case word."""

    code: str
    message: str


@dataclass(frozen=True, slots=True)
class Fault:
    """Why it came to no result; `code` is a stable lower-case word, `hint` the line to type."""

    code: str
    message: str
    hint: str | None


@dataclass(frozen=True, slots=True)
class Report:
    """The public document of `probe` and `explain`; null where it did not come that far.

    `results` and what belongs to them are of `probe`, `diagnoses` of `explain`.
    """

    schema: str
    command: str
    status: Status
    exit_code: int
    tool: Tool
    started_at: str
    elapsed_s: float
    run_dir: str | None
    request: SurveyRequest | None
    machine: Machine | None
    model: ModelFacts | None
    budget: Budget | None
    results: tuple[ProbeResult, ...]
    ranking: tuple[str, ...]
    ranking_reasons: Mapping[str, str]
    picks: Picks
    next_commands: tuple[str, ...]
    warnings: tuple[Warn, ...]
    errors: tuple[Fault, ...]
    diagnoses: tuple[Diagnosis, ...] = ()
