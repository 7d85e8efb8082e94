"""The options of verbs with a request: `probe`, `plan`, `explain`, `run`, `show` and `runs`."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated

from oomdoctor.cli.options import OUTPUT, completion, option
from oomdoctor.cli.options.answer import (
    AnswerOptions,
    ListOptions,
    Quiet,
    RankOptions,
    Verbose,
    either,
)
from oomdoctor.render.charts import CHARTS

_WORDS = f"The chart of --png and --svg: {either(CHARTS)}."
_CHART = option("--chart CHART", OUTPUT, _WORDS, completion.one_of(CHARTS))


@dataclass(frozen=True, slots=True)
class LadderOptions:
    """What is trained, with which configurations, on which data.

    Each verb says in the metadata of its field what it uses for the lengths that are not given.
    """

    model: str | None = None
    from_: list[str] | None = None
    recipe: str | None = None
    gpus: str | None = None
    seq_len: str | None = None
    effective_batch: str | None = None

    task: str = "auto"
    revision: str | None = None
    source: str = "auto"
    trust_remote_code: bool = False

    rung: list[str] | None = None
    micro_batch: str | None = None
    headroom: str = "2%"
    routing: str | None = None

    rows: str | None = None
    epochs: str | None = None
    lengths: str | None = None
    tokenizer: str | None = None
    text_field: str | None = None

    python: str | None = None
    fresh: bool = False


@dataclass(frozen=True, slots=True)
class PlanOptions:
    """A command line of `plan`."""

    gpu: list[str] | None = None
    ladder: LadderOptions = field(
        default_factory=LadderOptions,
        metadata={"defaults": {"seq_len": "2048", "effective_batch": "16"}},
    )

    all_gpus: bool = False
    fewest: bool = False
    interconnect: str = "auto"
    host_memory: str | None = None
    min_vram: str | None = None
    sort: str | None = None
    price: Path | None = None
    sweep: str | None = None
    why: str | None = None

    snapshot: str | None = None
    trace: str | None = None

    solve: str | None = None

    verify: bool = False

    with_: list[str] | None = None

    ranking: RankOptions = field(default_factory=RankOptions)
    answer: AnswerOptions = field(default_factory=AnswerOptions)
    verbose: bool = False
    quiet: Quiet = False


@dataclass(frozen=True, slots=True)
class ProbeOptions:
    """A command line of `probe`."""

    vram: str | None = None
    emulate: str | None = None
    ladder: LadderOptions = field(
        default_factory=LadderOptions,
        metadata={
            "defaults": {"seq_len": "2048; 64 on the CPU", "effective_batch": "16; 4 on the CPU"}
        },
    )

    device: str = "auto"
    ranks: str = "1"
    nodes: str = "1"
    wait: bool = False
    calibrate: bool = False

    resume: str | None = None
    predict: bool = True
    time_limit: str | None = None
    rung_timeout: str = "10m"
    evaluate: bool = False
    eval_batch: str = "8"

    snapshot: str | None = None
    trace: str | None = None

    ranking: RankOptions = field(default_factory=RankOptions)
    answer: AnswerOptions = field(default_factory=AnswerOptions)
    verbose: Verbose = False
    quiet: Quiet = False

    weights: str = "synthetic"
    seed: str = "0"


@dataclass(frozen=True, slots=True)
class ExplainOptions:
    """A command line of `explain`."""

    files: list[str] | None = None
    model: str | None = None
    seq_len: str | None = None
    micro_batch: str | None = None
    config: Path | None = None
    snapshot: Path | None = None
    exact: bool = False
    apply: Path | None = None
    verify: bool = False
    gpu: str | None = None
    remedy: str | None = None
    write: bool = False
    python: str | None = None
    answer: AnswerOptions = field(default_factory=AnswerOptions)
    verbose: bool = False
    quiet: bool = False


@dataclass(frozen=True, slots=True)
class RunOptions:
    """A command line of `run`."""

    command: list[str] | None = None
    emulate: str | None = None
    steps: str | None = None
    ranks: str = "all"
    weights: str = "real"
    values: str | None = None
    stop_at_oom: bool = False
    cure: bool = False
    max_peak: str | None = None
    breakdown: bool = False
    why: bool = False
    trace: Path | None = None
    case: Path | None = None
    report: Path | None = None
    python: str | None = None
    verbose: bool = False
    quiet: bool = False


@dataclass(frozen=True, slots=True)
class ShowOptions:
    """A command line of `show`."""

    run: str = "latest"
    list_: bool = False
    zip_: Path | None = None
    html: Path | None = None
    png: Path | None = None
    svg: Path | None = None
    chart: Annotated[str, _CHART] = CHARTS[0]
    rung: str | None = None
    answer: AnswerOptions = field(default_factory=AnswerOptions)
    verbose: Verbose = False


@dataclass(frozen=True, slots=True)
class RunsOptions:
    """A command line of `runs`."""

    model: str | None = None
    command: str | None = None
    since: str | None = None
    limit: str = "20"
    prune: bool = False
    keep: str | None = None
    older_than: str | None = None
    max_size: str | None = None
    dry_run: bool = False
    yes: bool = False
    answer: ListOptions = field(default_factory=ListOptions)
