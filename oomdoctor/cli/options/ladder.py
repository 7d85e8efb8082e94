"""The options of `probe` and `plan`: what both have, and what each has alone."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

from oomdoctor.cli.options.answer import AnswerOptions, Quiet, RankOptions, Verbose


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
