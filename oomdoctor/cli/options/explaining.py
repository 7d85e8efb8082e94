"""The options of `explain`."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated

import typer

from oomdoctor.cli.options import ADVANCED, COMMON, OUTPUT, completion, option
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
    model: Annotated[
        str | None,
        option(
            "--model",
            metavar="MODEL",
            panel=COMMON,
            completion=completion.models,
            help="The model in training: a Hugging Face id, a folder, or a name from "
            "`oomdoctor models`.",
        ),
    ] = None
    seq_len: Annotated[
        str | None,
        option("--seq-len", metavar="N", panel=COMMON, help="Tokens per sequence, with padding."),
    ] = None
    micro_batch: Annotated[
        str | None,
        option(
            "--micro-batch",
            metavar="N",
            panel=COMMON,
            help="Sequences per device in one forward pass.",
        ),
    ] = None
    config: Annotated[
        Path | None,
        option(
            "--config",
            metavar="FILE",
            panel=COMMON,
            help="Training settings as JSON, YAML, TOML or a script: those that plan --from reads, "
            "or some of them.",
        ),
    ] = None
    snapshot: Annotated[
        Path | None,
        option(
            "--snapshot",
            metavar="FILE",
            panel=COMMON,
            help="A memory snapshot of the same failure, which shows what held the memory.",
        ),
    ] = None
    exact: Annotated[
        bool,
        option(
            "--exact",
            panel=COMMON,
            help="Simulate the training and each remedy, instead of computing sizes. Needs torch.",
        ),
    ] = False
    apply: Annotated[
        Path | None,
        option(
            "--apply",
            metavar="FILE",
            panel=COMMON,
            help="Print the first remedy as a change of this training file (YAML, JSON or Python), "
            "as a unified diff.",
        ),
    ] = None
    remedy: Annotated[
        str | None,
        option(
            "--remedy",
            metavar="N",
            panel=ADVANCED,
            help="With --apply: the remedy with this number.  [default: the first that is a "
            "change of the file]",
        ),
    ] = None
    write: Annotated[
        bool,
        option(
            "--write",
            panel=ADVANCED,
            help="With --apply: change the file. As it was, it is kept as FILE.bak.",
        ),
    ] = False
    python: Annotated[
        str | None,
        option(
            "--python",
            metavar="PATH",
            panel=ADVANCED,
            help="Python interpreter for --exact, best the one you train with.  "
            "[default: the one that runs oomdoctor]",
        ),
    ] = None
    answer: AnswerOptions = field(default_factory=AnswerOptions)
    verbose: Annotated[
        bool,
        option(
            "--verbose",
            "-v",
            panel=OUTPUT,
            help="Show all causes, evidence, remedies and the lines to change.",
        ),
    ] = False
    quiet: Annotated[
        bool,
        option("--quiet", "-q", panel=OUTPUT, help="Print nothing on stderr except errors."),
    ] = False
