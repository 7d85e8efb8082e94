"""The options of `snapshot`."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated

import typer

from oomdoctor.cli.options import COMMON, OUTPUT, completion, option
from oomdoctor.cli.options.answer import AnswerOptions


@dataclass(frozen=True, slots=True)
class SnapshotOptions:
    """A command line of `snapshot`."""

    files: Annotated[
        list[Path] | None,
        typer.Argument(
            metavar="FILE",
            help="A snapshot that torch.cuda.memory._dump_snapshot wrote. With two, the page shows "
            "how the second differs from the first.",
            show_default=False,
        ),
    ] = None
    html: Annotated[
        Path | None,
        option(
            "--html",
            metavar="FILE",
            panel=COMMON,
            help="Also write a timeline that opens in a browser, without a network.",
        ),
    ] = None
    png: Annotated[
        Path | None,
        option(
            "--png",
            metavar="FILE",
            panel=COMMON,
            help="Also write the timeline as a picture; needs matplotlib.",
        ),
    ] = None
    gpu: Annotated[
        list[str] | None,
        option(
            "--gpu",
            metavar="CARD|SIZE",
            panel=COMMON,
            completion=completion.gpus,
            help="Say whether it would have fitted this card or size. Repeat to compare.",
        ),
    ] = None
    answer: AnswerOptions = field(default_factory=AnswerOptions)
    verbose: Annotated[
        bool,
        option(
            "--verbose", "-v", panel=OUTPUT, help="Show all lines of code, causes and remedies."
        ),
    ] = False
    quiet: Annotated[
        bool,
        option("--quiet", "-q", panel=OUTPUT, help="Print nothing on stderr except errors."),
    ] = False
