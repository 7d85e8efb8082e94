"""The programs whose logs are read, and what runs around them, as `data/programs.toml` has them."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cache
from typing import Any, Literal

from oomdoctor.explain.reading.parse import OF_PYTORCH
from oomdoctor.package_data import data_of, in_tuples
from oomdoctor.records.facts.choices import FormatName
from oomdoctor.records.report.diagnosis import Incident

Kind = Literal["training", "rl", "engine", "diffusion", "array", "inference"]
_NEAR_START = 4_000  # lines that may name the program; later ones only in a traceback or message
_LONGEST_LINE = 2_000
_LONGEST_QUOTE = 400
_DATA: Mapping[str, Any] = in_tuples(data_of("programs.toml"))


@dataclass(frozen=True, slots=True)
class Program:
    """One program: how its logs show it, and how lines to type are written for it.

    `library` is the one whose trainer it calls, if it is not a library itself. `frames` and `lines`
    are None if nothing there names it. `starts` are its frames above those of an engine. `text` is
    whether it trains only models of text, `images` only those of images. `half` is whether it uses
    16 bits or fewer, unless it is asked for more, and `swaps_blocks` whether it can keep blocks of
    the model in host memory. `runs` are the programs that it starts, whose lines are in its logs
    too. `share` is the part of the GPU that an engine takes, 0 to 1, and `context` its tokens,
    where nothing else is said. `format` is what its own files of settings, or its scripts, are
    recognized as.
    """

    name: str
    title: str
    kind: Kind
    speaks: tuple[str, ...]
    library: str
    frames: re.Pattern[str] | None = None
    lines: re.Pattern[str] | None = None
    starts: re.Pattern[str] | None = None
    dialects: tuple[str, ...] = ()
    text: bool = False
    images: bool = False
    half: bool = False
    swaps_blocks: bool = False
    runs: tuple[str, ...] = ()
    share: float | None = None
    context: int | None = None
    format: FormatName | None = None

    def marks(self) -> list[str]:
        """`images`, `half` and `swaps_blocks`, where they hold: rules and remedies name them."""
        marks = {"images": self.images, "half": self.half, "swaps_blocks": self.swaps_blocks}
        return [name for name, holds in marks.items() if holds]


@cache
def programs() -> tuple[Program, ...]:
    """All programs, special ones before general ones."""
    return tuple(_program(row) for row in _DATA["program"])


@cache
def libraries() -> tuple[str, ...]:
    """The libraries with a trainer, or plain torch: the names that lines of a training have."""
    own = (
        program
        for program in programs()
        if program.kind == "training" and program.library == program.name
    )
    return tuple(dict.fromkeys(program.name for program in own))


@cache
def around() -> Mapping[str, re.Pattern[str]]:
    """What a line says about what runs around a program or goes on in it, by name."""
    return {row["name"]: re.compile(row["lines"]) for row in _DATA["around"]}


@cache
def around_of(kind: str) -> frozenset[str]:
    """The names of one kind: "scheduler" or "container"."""
    return frozenset(row["name"] for row in _DATA["around"] if row.get("kind") == kind)


def program_of(incident: Incident, mentions: Mapping[str, tuple[str, ...]]) -> Program | None:
    """The program that failed, by its traceback and message, then by what the log mentions.

    A message that only some programs print rules out those of another kind.
    """
    named = [program for program in programs() if incident.event.dialect in program.dialects]
    shown = [f"{f.file} {f.function} {f.code or ''}".replace("\\", "/") for f in incident.frames]
    of_pytorch = incident.event.dialect in OF_PYTORCH
    marks: tuple[Callable[[Program], bool], ...] = (
        lambda program: program.frames is not None and any(map(program.frames.search, shown)),
        lambda program: (
            program.lines is not None and any(map(program.lines.search, incident.lines))
        ),
        lambda program: program.name in mentions and not (of_pytorch and program.kind == "array"),
    )
    marked = (program for mark in marks for program in programs() if mark(program))
    rl = (program for program in programs() if program.kind == "rl" and program.name in mentions)
    seen = next(marked, None)
    if seen is programs()[-1] and all("/torch/" in frame for frame in shown):
        seen = next(marked, seen)  # the end of a traceback: torch's, whatever the program
    if seen is None or seen.kind in ("engine", "training"):
        seen = next(rl, seen)
    if seen is not None and seen.kind == "engine":
        starting = (
            program
            for program in programs()
            if program.starts and any(map(program.starts.search, shown))
        )
        seen = next(starting, seen)
    if seen is not None:
        around_it = (
            program
            for program in programs()
            if seen.name in program.runs and program.name in mentions
        )
        seen = next(around_it, seen)
    # Several engines print one dialect; the first row that has it is the one it is named after.
    if named and (seen is None or seen.kind not in ("rl", named[0].kind)):
        return named[0]
    return seen


def program_of_file(name: FormatName) -> Program | None:
    """The program that reads files of this format; None for those of a launcher."""
    return next((program for program in programs() if program.format == name), None)


class MentionReader:
    """Gathers the lines that name a program or what runs around it; `feed` every line."""

    def __init__(self) -> None:
        self.mentions: dict[str, tuple[str, ...]] = {}
        self._left = _NEAR_START
        self._unseen = dict(_patterns())
        self._words = _words()

    def feed(self, text: str) -> None:
        """Read one line."""
        if self._left <= 0:
            return
        self._left -= 1
        text = text[:_LONGEST_LINE]
        named = {name for word, name in self._words if word in text}
        for name in [name for name in named if self._unseen[name].search(text)]:
            self.mentions[name] = (text.strip()[:_LONGEST_QUOTE],)
            del self._unseen[name]
            self._words = tuple(pair for pair in self._words if pair[1] != name)


def _program(row: Mapping[str, Any]) -> Program:
    patterns = {key: re.compile(row[key]) for key in ("frames", "lines", "starts") if key in row}
    return Program(**{"library": row["name"], **row, **patterns})


@cache
def _patterns() -> Mapping[str, re.Pattern[str]]:
    named = {program.name: program.lines for program in programs() if program.lines is not None}
    return {**named, **around()}


@cache
def _words() -> tuple[tuple[str, str], ...]:
    """Plain words, and the name whose pattern needs one of them: looking for them is faster."""
    words = _DATA["words"]
    return tuple((word, name) for name in _patterns() for word in words[name].split("|") if word)
