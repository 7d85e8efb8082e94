"""The options of `run`."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import typer

from oomdoctor.cli.options import ADVANCED, COMMON, OUTPUT, completion, declare, switch


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
    emulate: str | None = declare(
        "--emulate CARD|SIZE|NxCARD",
        COMMON,
        "A GPU to emulate: a card from `oomdoctor gpus`, a size such as 24GiB, or "
        "several, such as 8xH100.  [default: the GPUs of this machine]",
        completion=completion.gpus,
    )
    steps: str | None = declare(
        "--steps N|steady|all",
        COMMON,
        "Stop the training after N optimizer steps, or once memory repeats (steady), or "
        "never (all).  [default: steady with --emulate, else all]",
    )
    ranks: str = declare(
        "--ranks all|1",
        COMMON,
        "With 1, only the first rank runs and the others are taken to do the same: many "
        "GPUs in the host memory of one process.",
        default="all",
    )
    weights: str = declare(
        "--weights real|synthetic",
        COMMON,
        "With synthetic, from_pretrained needs only a config: it loads a checkpoint with "
        "the right names and shapes and no data.",
        default="real",
    )
    values: str = declare(
        "--values NUMBER",
        ADVANCED,
        "What the command reads as a number that no kernel computed, such as a loss.",
        default="0",
    )
    case: Path | None = declare(
        "--case FOLDER",
        OUTPUT,
        "Where to keep snapshot, output and diagnosis if memory runs out.  "
        "[default: a new folder in $XDG_STATE_HOME/oomdoctor/cases]",
    )
    report: Path | None = declare("--report FILE", OUTPUT, "Write the report as JSON.")
    python: str | None = declare(
        "--python PATH",
        ADVANCED,
        "The interpreter of the command; the programs beside it come first in its PATH. "
        " [default: found from the command]",
    )
    verbose: bool = switch("--verbose, -v", OUTPUT, "Show every rank, every step and all remedies.")
    quiet: bool = switch("--quiet, -q", OUTPUT, "Print nothing but what the command prints.")
