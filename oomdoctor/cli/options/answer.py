"""The options about the answer: how it is ranked, its format and where it goes."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

from oomdoctor.cli.options import COMMON, OUTPUT, completion, option
from oomdoctor.render.formats import format_endings, format_names

FORMATS = format_names()


def either(words: tuple[str, ...]) -> str:
    """`one`, or `one, two or three`."""
    *most, last = words
    return f"{', '.join(most)} or {last}" if most else last


Quiet = Annotated[bool, option("--quiet, -q", OUTPUT, "Print no progress on stderr.")]
Verbose = Annotated[
    bool, option("--verbose, -v", OUTPUT, "Show every attempt, every phase and memory statistics.")
]
ListJson = Annotated[bool, option("--json", None, "Print one JSON document.")]


@dataclass(frozen=True, slots=True)
class RankOptions:
    """How a survey or a plan ranks its rungs."""

    rank_by: str = "throughput"
    tokens: str = "1M"


def _format(*, pages: bool) -> object:
    names = format_names(pages=pages)
    words = f"Output format: {either(names)}."
    return option("--format FORMAT", OUTPUT, words, completion.one_of(names))


def _file(*, pages: bool) -> object:
    endings = either(format_endings(pages=pages))
    words = f"Also write the answer to a file; {endings} sets its format."
    return option("--output FILE", OUTPUT, words)


_Json = Annotated[bool, option("--json", COMMON, "The same as --format json.")]


@dataclass(frozen=True, slots=True)
class AnswerOptions:
    """The format of the answer, and a file for a copy of it."""

    json_: _Json = False
    format_: Annotated[str, _format(pages=True)] = "table"
    output_file: Annotated[Path | None, _file(pages=True)] = None


@dataclass(frozen=True, slots=True)
class ListOptions:
    """The same for a list, which has no page for a browser."""

    json_: _Json = False
    format_: Annotated[str, _format(pages=False)] = "table"
    output_file: Annotated[Path | None, _file(pages=False)] = None
