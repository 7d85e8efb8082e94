"""The parts of a page: sections with facts, grids, notes, code and verbatim lines.

The parts hold the text and say what may leave a narrow table first. `formats` draws them. At the
end are the sections that every page has: errors, warnings, the next commands.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Literal, TypeVar

if TYPE_CHECKING:
    from oomdoctor.records.report.report import Report


T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Column:
    """A column of a grid.

    A column with `importance` 0 stays at any width. The highest number leaves a narrow table first
    and goes to the line below the row, in the words of `detail`. `tone` marks an outcome, which is
    colored by its words. `wraps` lets text in the last column take several lines. What follows from
    other columns does not spill: a narrow table leaves it out and says so.
    """

    name: str
    importance: int = 0
    right: bool = False
    detail: str = "{}"
    tone: bool = False
    wraps: bool = False
    spills: bool = True


def figures(name: str, importance: int = 0, detail: str = "") -> Column:
    """A column of numbers, which line up at the right; below a row they stand behind its name."""
    return Column(name, importance, right=True, detail=detail or f"{name} {{}}")


@dataclass(frozen=True, slots=True)
class Grid:
    """Rows of text under columns. An empty cell has nothing to say; a dash is an unknown value.

    Without `spill` a narrow table drops columns and says so; that suits long lists. Without `head`
    text has no line of names above the rows.
    """

    columns: tuple[Column, ...]
    rows: tuple[tuple[str, ...], ...]
    spill: bool = True
    head: bool = True

    def without_empty_columns(self) -> Grid:
        """The grid without the columns that are empty in every row."""
        kept = [i for i in range(len(self.columns)) if any(row[i] for row in self.rows)]
        return replace(
            self,
            columns=tuple(self.columns[i] for i in kept),
            rows=tuple(tuple(row[i] for i in kept) for row in self.rows),
        )


Cells = Sequence[tuple[Column, Callable[[T], str]]]
"""Columns, each with what it shows of a record."""


def table_of(records: Iterable[T], cells: Cells[T], *, spill: bool = True) -> Grid:
    """A row a record, from columns that each say what they show of one."""
    columns = tuple(column for column, _ in cells)
    return Grid(
        columns, tuple(tuple(show(record) for _, show in cells) for record in records), spill
    )


@dataclass(frozen=True, slots=True)
class Sized:
    """A grid in several versions.

    `whole` is for a pipe or a file. A terminal draws the first of `drawn`, widest first, that it
    has room for, or else the last, and the notes of that one below it.
    """

    whole: Grid
    drawn: tuple[tuple[Grid, tuple[Note, ...]], ...]


@dataclass(frozen=True, slots=True)
class Facts:
    """Named sentences. An empty name continues the fact above."""

    pairs: tuple[tuple[str, str], ...]


@dataclass(frozen=True, slots=True)
class Note:
    """A sentence; an aside explains the block beside it and may be drawn dimmed."""

    text: str
    weight: Literal["strong", "normal", "aside"] = "aside"


@dataclass(frozen=True, slots=True)
class Verbatim:
    """Lines shown as they are: commands to copy, the end of a log (already made safe)."""

    lines: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Code:
    """Lines to type, by the name of what they are for, which is not shown unless they are `named`.

    A terminal breaks them between words, so that a shell can still run what is copied.
    """

    pairs: tuple[tuple[str, str], ...]
    depth: int = 4
    named: bool = True

    def lines(self) -> list[tuple[str, str, str]]:
        """The text before each line, the line, and the name that it is for."""
        size = max((len(name) for name, _ in self.pairs), default=0) + 2 if self.named else 0
        return [
            (" " * self.depth + f"{'' if number or not self.named else name:<{size}}", line, name)
            for name, text in self.pairs
            for number, line in enumerate(text.splitlines())
        ]


Block = Grid | Sized | Facts | Note | Verbatim | Code


@dataclass(frozen=True, slots=True)
class Section:
    """Blocks under a title; the first section of a page has no title.

    `part` is the part of a page for a browser that it belongs to, if not that of its neighbours.
    """

    title: str
    blocks: tuple[Block, ...]
    part: str = ""


@dataclass(frozen=True, slots=True)
class Look:
    """How much a page says: with `verbose` all that is known. Without `signs` it is ASCII.

    `drawn` pages have charts, and no bars of letters.
    """

    verbose: bool = False
    signs: bool = True
    drawn: bool = False

    @property
    def plus_minus(self) -> str:
        """The sign before a spread."""
        return "±" if self.signs else "+-"


@dataclass(frozen=True, slots=True)
class Part:
    """A part of the page for a browser. Without a title it is not in the list of contents.

    `charts` are the names of the kinds that it shows, above its sections. A `folded` part is opened
    on request.
    """

    name: str
    title: str
    sections: tuple[Section, ...] = ()
    charts: tuple[str, ...] = ()
    folded: bool = False


def error_sections(report: Report) -> list[Section]:
    """What failed, and the line to type."""
    pairs = []
    for fault in report.errors:
        pairs.append(("error:", fault.message))
        for number, line in enumerate((fault.hint or "").splitlines()):
            pairs.append(("" if number else "hint:", line))
    return [Section("Errors", (Facts(tuple(pairs)),))] if pairs else []


def message_sections(title: str, texts: Sequence[str]) -> list[Section]:
    """A sentence a line, such as warnings; nothing without texts."""
    return [Section(title, tuple(Note(text, "normal") for text in texts))] if texts else []


def warning_sections(report: Report) -> list[Section]:
    """The warnings; those that Slurm causes stand apart."""
    slurm = [warning.message for warning in report.warnings if warning.code == "slurm"]
    others = [warning.message for warning in report.warnings if warning.code != "slurm"]
    return [*message_sections("Slurm", slurm), *message_sections("Warnings", others)]


def next_sections(report: Report) -> list[Section]:
    """The commands to run next, here and on the machine with the GPU."""
    titled = {
        "Next:": report.next_commands,
        "Next, on the machine with the GPU:": report.next_on_gpu,
    }
    return [Section(title, (Verbatim(lines),)) for title, lines in titled.items() if lines]
