"""The options of `explain`, `run`, `show` and `runs`; those of other verbs stand beside them."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

from oomdoctor.cli.options import OUTPUT, completion, declare
from oomdoctor.cli.options.answer import AnswerOptions, ListOptions, Verbose, either
from oomdoctor.render.charts import CHARTS


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
    chart: str = declare(
        "--chart CHART",
        OUTPUT,
        f"The chart of --png and --svg: {either(CHARTS)}.",
        default=CHARTS[0],
        completion=completion.one_of(CHARTS),
    )
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
