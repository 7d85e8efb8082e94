"""The options of `watch`."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

import typer

from oomdoctor.cli.options import COMMON, OUTPUT, declare, switch


@dataclass(frozen=True, slots=True)
class WatchOptions:
    """A command line of `watch`."""

    target: Annotated[
        str | None,
        typer.Argument(
            metavar="PID|latest|LOG",
            help="A process, which counts with those that it started; or the latest training; or "
            "the file of a live log. Default: latest.",
            show_default=False,
        ),
    ] = None
    gpu: int | None = declare("--gpu N", COMMON, "Watch a GPU, by its index in nvidia-smi.")
    json_: bool = switch("--json", COMMON, "Print one JSON document.")
    once: bool = switch("--once", OUTPUT, "Print one page, also on a terminal.")
    verbose: bool = switch("--verbose, -v", OUTPUT, "Show every rank of a training.")
