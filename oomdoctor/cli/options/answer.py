"""The options about the answer: its format, where it goes, how much it tells."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from oomdoctor.cli.options import optional
from oomdoctor.cli.options.reader import Reader
from oomdoctor.cli.streams import output
from oomdoctor.render.formats import format_endings, format_names

FORMATS = format_names()

RankBy = Annotated[
    str, typer.Option("--rank-by", metavar="KEY", help="throughput, memory or micro-batch.")
]
Tokens = Annotated[
    str, typer.Option("--tokens", metavar="COUNT", help="State the time for this many tokens.")
]
Format = Annotated[
    str,
    typer.Option("--format", metavar="FORMAT", help=f"{', '.join(FORMATS[:-1])} or {FORMATS[-1]}."),
]
Json = Annotated[bool, typer.Option("--json", help="The same as --format json.")]
ListJson = Annotated[bool, typer.Option("--json", help="Print one JSON document.")]
Output = Annotated[
    Path | None,
    optional(
        "--output",
        "FILE",
        f"Write the answer there too; {', '.join(format_endings())} choose its format.",
    ),
]
Verbose = Annotated[
    bool, typer.Option("--verbose", "-v", help="Every try, every phase, memory statistics.")
]
Quiet = Annotated[bool, typer.Option("--quiet", "-q", help="No progress on stderr.")]


def chosen_format(command: str, text: str, as_json: bool, file: Path | None) -> str:
    """The output format, where `--json` is short for `--format json`.

    Raises:
        OomDoctorError: the format is unknown, the two options contradict each other, or `file`
            could not be written after the work (exit 2).
    """
    reader = Reader(command)
    reader.choice("--format", text, FORMATS)
    if as_json and text not in ("table", "json"):
        reader.fault("--format", f"{text} and --json ask for two different documents")
    reader.check()
    if file is not None:
        output.check_writable(file)
    return "json" if as_json else text
