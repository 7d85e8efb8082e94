"""The options of `snapshot`."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated

import typer

from oomdoctor.cli.options import COMMON, OUTPUT, completion, declare, switch
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
    html: Path | None = declare(
        "--html FILE", COMMON, "Also write a timeline that opens in a browser, without a network."
    )
    png: Path | None = declare(
        "--png FILE", COMMON, "Also write the timeline as a picture; needs matplotlib."
    )
    gpu: list[str] | None = declare(
        "--gpu CARD|SIZE",
        COMMON,
        "Say whether it would have fitted this card or size. Repeat to compare.",
        completion=completion.gpus,
    )
    answer: AnswerOptions = field(default_factory=AnswerOptions)
    verbose: bool = switch("--verbose, -v", OUTPUT, "Show all lines of code, causes and remedies.")
    quiet: bool = switch("--quiet, -q", OUTPUT, "Print nothing on stderr except errors.")
