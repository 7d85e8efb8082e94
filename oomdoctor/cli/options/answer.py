"""The options about the answer: how it is ranked, its format and where it goes."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

from oomdoctor.cli.options import COMMON, OUTPUT, option
from oomdoctor.render.formats import format_endings, format_names

FORMATS = format_names()


def _either(words: tuple[str, ...]) -> str:
    return f"{', '.join(words[:-1])} or {words[-1]}"


Quiet = Annotated[bool, option("--quiet", "-q", panel=OUTPUT, help="Print no progress on stderr.")]
Verbose = Annotated[
    bool,
    option(
        "--verbose",
        "-v",
        panel=OUTPUT,
        help="Show every attempt, every phase and memory statistics.",
    ),
]
ListJson = Annotated[bool, option("--json", help="Print one JSON document.")]


@dataclass(frozen=True, slots=True)
class RankOptions:
    """How a survey or a plan ranks its rungs."""

    rank_by: Annotated[
        str,
        option(
            "--rank-by",
            metavar="KEY",
            panel=OUTPUT,
            help="Rank by throughput, memory or micro-batch.",
        ),
    ] = "throughput"
    tokens: Annotated[
        str,
        option(
            "--tokens",
            metavar="COUNT",
            panel=OUTPUT,
            help="Show how long training on this many tokens takes.",
        ),
    ] = "1M"


@dataclass(frozen=True, slots=True)
class AnswerOptions:
    """The format of the answer, and a file for a copy of it."""

    json_: Annotated[bool, option("--json", panel=COMMON, help="The same as --format json.")] = (
        False
    )
    format_: Annotated[
        str,
        option(
            "--format",
            metavar="FORMAT",
            panel=OUTPUT,
            help=f"Output format: {_either(FORMATS)}.",
        ),
    ] = "table"
    output_file: Annotated[
        Path | None,
        option(
            "--output",
            metavar="FILE",
            panel=OUTPUT,
            help=f"Also write the answer to a file; {_either(format_endings())} sets its format.",
        ),
    ] = None
