"""The options of `explain`."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated

import typer

from oomdoctor.cli.options import ADVANCED, COMMON, OUTPUT, completion, declare, switch
from oomdoctor.cli.options.answer import AnswerOptions


@dataclass(frozen=True, slots=True)
class ExplainOptions:
    """A command line of `explain`."""

    files: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="FILE|JOB",
            help="Logs (plain, .gz or .zst) or Slurm job ids. With - or nothing, reads what is "
            "piped in.",
            show_default=False,
        ),
    ] = None
    model: str | None = declare(
        "--model MODEL",
        COMMON,
        "The model in training: a Hugging Face id, a folder, or a name from `oomdoctor models`.",
        completion=completion.models,
    )
    seq_len: str | None = declare("--seq-len N", COMMON, "Tokens per sequence, with padding.")
    micro_batch: str | None = declare(
        "--micro-batch N", COMMON, "Sequences per device in one forward pass."
    )
    config: Path | None = declare(
        "--config FILE",
        COMMON,
        "Training settings as JSON, YAML, TOML or a script: those that plan --from reads, "
        "or some of them.",
    )
    snapshot: Path | None = declare(
        "--snapshot FILE",
        COMMON,
        "A memory snapshot of the same failure, which shows what held the memory.",
    )
    exact: bool = switch(
        "--exact",
        COMMON,
        "Simulate the training and each remedy, instead of computing sizes. Needs torch.",
    )
    apply: Path | None = declare(
        "--apply FILE",
        COMMON,
        "Print the first remedy as a change of this training file (YAML, JSON or Python), "
        "as a unified diff.",
    )
    remedy: str | None = declare(
        "--remedy N",
        ADVANCED,
        "With --apply: the remedy with this number.  [default: the first that is a "
        "change of the file]",
    )
    write: bool = switch(
        "--write", ADVANCED, "With --apply: change the file. As it was, it is kept as FILE.bak."
    )
    python: str | None = declare(
        "--python PATH",
        ADVANCED,
        "Python interpreter for --exact, best the one you train with.  "
        "[default: the one that runs oomdoctor]",
    )
    answer: AnswerOptions = field(default_factory=AnswerOptions)
    verbose: bool = switch(
        "--verbose, -v", OUTPUT, "Show all causes, evidence, remedies and the lines to change."
    )
    quiet: bool = switch("--quiet, -q", OUTPUT, "Print nothing on stderr except errors.")
