"""The request of a run and its report. A report as JSON is the public document."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import Literal

from oomdoctor import __version__
from oomdoctor.records.configuration.config import Recipe
from oomdoctor.records.facts.choices import Routing
from oomdoctor.records.job.dataset import LengthsAnswer, LengthsRequest, TrainingRequest
from oomdoctor.records.job.machine import Machine
from oomdoctor.records.job.model import ModelRef, ModelSource, Task
from oomdoctor.records.job.result import FileKind, ProbeResult, WeightsChoice
from oomdoctor.records.report.calibration import CalibrationAnswer
from oomdoctor.records.report.check import CheckAnswer
from oomdoctor.records.report.diagnosis import Cause, Diagnosis, Remedy, SettingValue
from oomdoctor.records.report.earlier_runs import DiffAnswer
from oomdoctor.records.report.plan import CardPlan, PlanRequest, SweepAnswer, Why
from oomdoctor.records.report.run import (
    HostMemory,
    LargerBatch,
    LaunchedStep,
    MaxPeak,
    RankMemory,
    RunDevice,
    SmallestGpu,
    UnknownSizes,
)
from oomdoctor.records.report.searched import FewestAnswer, SolveAnswer
from oomdoctor.records.report.snapshot import SnapshotDevice, SnapshotDifference
from oomdoctor.records.report.triage import GatheredJob, Triage
from oomdoctor.records.report.user_training import AppliedRemedy, UserTraining, YourRung
from oomdoctor.records.report.watch import WatchAnswer

SCHEMA = "oomdoctor/1"
Status = Literal["ok", "no", "partial", "error", "interrupted", "running"]
RankBy = Literal["throughput", "memory", "micro-batch"]


@dataclass(frozen=True, slots=True)
class ModelFacts:
    """The model as the report shows it.

    `quant_method` says how its checkpoint is quantized (config.json); None if it is not.
    """

    id: str
    source: ModelSource
    architecture: str
    model_type: str
    task: Task
    parameters: int | None
    revision: str | None
    weights: WeightsChoice
    mixture_of_experts: bool
    quant_method: str | None = None


@dataclass(frozen=True, slots=True)
class Budget:
    """The memory to train in. `cap_bytes` is --vram; usable = min(free, cap) - headroom."""

    total_bytes: int
    cap_bytes: int | None
    free_bytes: int
    headroom_bytes: int
    usable_bytes: int


@dataclass(frozen=True, slots=True)
class SurveyRequest:
    """The request of a survey, complete enough to resume it (`--resume`).

    `device` is "auto", "cpu", "cuda", "cuda:N" or a GPU UUID. With `micro_batch_size` None the size
    is searched for. `time_limit_s` limits the survey, `rung_limit_s` one worker process. `python`
    is the interpreter that the user trains with. The report gives the time for `tokens` tokens. If
    `plan` is set, configurations are simulated instead of measured, and `device` is "cuda".
    `lengths` names a data file; its longest row is the sequence length. With `predict`
    configurations are simulated before they are measured. With `fresh` they are simulated even if
    an earlier run did it. The report also gives the time for `training`, the user's own data.
    `versions` are the library versions that a plan was asked to simulate with, such as
    "transformers==4.51.3". With `emulate` (a card, a size or `NxCARD`) configurations run on an
    emulated GPU. `snapshot` and `trace` are the labels of configurations to record in a file.
    `gpus` is the world size of each configuration that fixes none. On emulated GPUs one rank of a
    job on several runs, or all of them with `all_ranks`. Ranks are spread over `nodes` machines of
    a Slurm job. `from_files` are the texts of --from, and `user_training` is what they say; its
    configuration is the first of the recipe. `routing` is the value of --routing, which every
    configuration of the recipe has.
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
    plan: PlanRequest | None = None
    lengths: LengthsRequest | None = None
    predict: bool = False
    fresh: bool = False
    training: TrainingRequest | None = None
    versions: tuple[str, ...] = ()
    emulate: str | None = None
    snapshot: str | None = None
    trace: str | None = None
    gpus: int = 1
    all_ranks: bool = False
    nodes: int = 1
    from_files: tuple[str, ...] = ()
    user_training: UserTraining | None = None
    routing: Routing | None = None

    def gpus_here(self) -> int:
        """The GPUs of this node that a configuration needs at most."""
        return self.most_gpus() // self.nodes

    def most_gpus(self) -> int:
        """The GPUs that the largest configuration trains on."""
        return max([self.gpus, *(rung.config.world_size for rung in self.recipe.rungs)])


@dataclass(frozen=True, slots=True)
class Picks:
    """The key of the best configuration of each method, because the methods train differently."""

    full: str | None
    lora: str | None
    qlora: str | None


@dataclass(frozen=True, slots=True)
class Ranking:
    """Keys of what fits, best first; the reason for each place; a pick per method."""

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
    """A warning that did not stop the survey; `code` is a stable lower-case word."""

    code: str
    message: str


@dataclass(frozen=True, slots=True)
class Fault:
    """An error; `code` is a stable lower-case word, `hint` a line to type or what to do."""

    code: str
    message: str
    hint: str | None


@dataclass(frozen=True, slots=True)
class Simulations:
    """How many simulations a plan used, and how many of them an earlier run did.

    `oldest_at` is when the oldest of those ran (UTC, ISO 8601).
    """

    total: int
    from_cache: int
    oldest_at: str | None


@dataclass(frozen=True, slots=True)
class RungFile:
    """A file that some steps of a configuration were recorded in: a memory snapshot, or a trace."""

    kind: FileKind
    label: str
    micro_batch_size: int
    path: str


@dataclass(frozen=True, slots=True)
class Report:
    """The public document of `probe`, `plan`, `explain`, `triage`, `run` and `snapshot`.

    Null is for what is unknown. Each command fills its own keys: `results` and what belongs to them
    are from `probe`, and from `plan` for one device.
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
    cards: tuple[CardPlan, ...] = ()
    sweep: SweepAnswer | None = None
    why: Why | None = None
    lengths: LengthsAnswer | None = None
    simulations: Simulations | None = None
    next_on_gpu: tuple[str, ...] = ()
    solve: SolveAnswer | None = None
    fewest: FewestAnswer | None = None
    device: RunDevice | None = None
    command_line: tuple[str, ...] = ()
    exit_code_of_command: int | None = None
    ranks: tuple[RankMemory, ...] = ()
    smallest_gpu: SmallestGpu | None = None
    source: str | None = None
    torch_version: str | None = None
    settings: Mapping[str, SettingValue] = field(default_factory=dict)
    devices: tuple[SnapshotDevice, ...] = ()
    differences: tuple[SnapshotDifference, ...] = ()
    causes: tuple[Cause, ...] = ()
    remedies: tuple[Remedy, ...] = ()
    watch: WatchAnswer | None = None
    host: HostMemory | None = None
    larger_batch: LargerBatch | None = None
    files: tuple[RungFile, ...] = ()
    triage: Triage | None = None
    gathered: tuple[GatheredJob, ...] = ()
    yours: YourRung | None = None
    diff: DiffAnswer | None = None
    applied: AppliedRemedy | None = None
    unknown_sizes: UnknownSizes | None = None
    max_peak: MaxPeak | None = None
    versions: Mapping[str, str] = field(default_factory=dict)
    check: CheckAnswer | None = None
    step: LaunchedStep | None = None
    calibration: CalibrationAnswer | None = None

    @property
    def usable_bytes(self) -> int | None:
        """What a configuration may use of the device; None where no budget is known."""
        return self.budget.usable_bytes if self.budget is not None else None


def bare_report(
    command: str, status: Status, exit_code: int, started: datetime, elapsed_s: float
) -> Report:
    """The report of a command without any answer yet; `replace` adds what it found."""
    return Report(
        schema=SCHEMA,
        command=command,
        status=status,
        exit_code=int(exit_code),
        tool=Tool("oomdoctor", __version__),
        started_at=started.isoformat(timespec="seconds"),
        elapsed_s=round(elapsed_s, 3),
        run_dir=None,
        request=None,
        machine=None,
        model=None,
        budget=None,
        results=(),
        ranking=(),
        ranking_reasons={},
        picks=Picks(None, None, None),
        next_commands=(),
        warnings=(),
        errors=(),
    )
