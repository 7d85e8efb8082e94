"""The options of `watch`."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

import typer

from oomdoctor.cli.options import COMMON, OUTPUT, option


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
    gpu: Annotated[
        int | None,
        option("--gpu", metavar="N", panel=COMMON, help="Watch a GPU, by its index in nvidia-smi."),
    ] = None
    json_: Annotated[bool, option("--json", panel=COMMON, help="Print one JSON document.")] = False
    once: Annotated[
        bool,
        option("--once", panel=OUTPUT, help="Print one page, also on a terminal."),
    ] = False
    verbose: Annotated[
        bool, option("--verbose", "-v", panel=OUTPUT, help="Show every rank of a training.")
    ] = False
