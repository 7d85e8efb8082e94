"""The options of `run`."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import typer

from oomdoctor.cli.options import ADVANCED, COMMON, OUTPUT, completion, option


@dataclass(frozen=True, slots=True)
class RunOptions:
    """A command line of `run`."""

    command: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="-- COMMAND",
            help="The command to run, unchanged, after --.",
            show_default=False,
        ),
    ] = None
    emulate: Annotated[
        str | None,
        option(
            "--emulate",
            metavar="CARD|SIZE|NxCARD",
            panel=COMMON,
            completion=completion.gpus,
            help="A GPU to emulate: a card from `oomdoctor gpus`, a size such as 24GiB, or "
            "several, such as 8xH100.  [default: the GPUs of this machine]",
        ),
    ] = None
    steps: Annotated[
        str | None,
        option(
            "--steps",
            metavar="N|steady|all",
            panel=COMMON,
            help="Stop the training after N optimizer steps, or once memory repeats (steady), or "
            "never (all).  [default: steady with --emulate, else all]",
        ),
    ] = None
    ranks: Annotated[
        str,
        option(
            "--ranks",
            metavar="all|1",
            panel=COMMON,
            help="With 1, only the first rank runs and the others are taken to do the same: many "
            "GPUs in the host memory of one process.",
        ),
    ] = "all"
    weights: Annotated[
        str,
        option(
            "--weights",
            metavar="real|synthetic",
            panel=COMMON,
            help="With synthetic, from_pretrained needs only a config: it loads a checkpoint with "
            "the right names and shapes and no data.",
        ),
    ] = "real"
    values: Annotated[
        str,
        option(
            "--values",
            metavar="NUMBER",
            panel=ADVANCED,
            help="What the command reads as a number that no kernel computed, such as a loss.",
        ),
    ] = "0"
    case: Annotated[
        Path | None,
        option(
            "--case",
            metavar="FOLDER",
            panel=OUTPUT,
            help="Where to keep snapshot, output and diagnosis if memory runs out.  "
            "[default: a new folder in $XDG_STATE_HOME/oomdoctor/cases]",
        ),
    ] = None
    report: Annotated[
        Path | None,
        option("--report", metavar="FILE", panel=OUTPUT, help="Write the report as JSON."),
    ] = None
    python: Annotated[
        str | None,
        option(
            "--python",
            metavar="PATH",
            panel=ADVANCED,
            help=(
                "The interpreter of the command; the programs beside it come first in its PATH. "
                " [default: found from the command]"
            ),
        ),
    ] = None
    verbose: Annotated[
        bool,
        option(
            "--verbose",
            "-v",
            panel=OUTPUT,
            help="Show every rank, every step and all remedies.",
        ),
    ] = False
    quiet: Annotated[
        bool,
        option("--quiet", "-q", panel=OUTPUT, help="Print nothing but what the command prints."),
    ] = False
