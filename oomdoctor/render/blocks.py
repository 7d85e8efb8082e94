"""What a page is made of: sections with facts, grids, notes and verbatim lines.

The parts say what there is to read and in which order it may be left out of a narrow table. How
it is drawn is for `table` (terminal and pipe) and `document` (markdown).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal


@dataclass(frozen=True, slots=True)
class Column:
    """A column of a grid.

    `importance` 0 keeps the column at any width; the highest number leaves a narrow table first,
    for the line below the row, where the value reads as `detail` says. `tone` marks the column
    that holds an outcome and may be coloured by its words. `wraps` lets the last column, if it is
    a text, take several lines within the table.
    """

    name: str
    importance: int = 0
    right: bool = False
    detail: str = "{}"
    tone: bool = False
    wraps: bool = False


@dataclass(frozen=True, slots=True)
class Grid:
    """Rows of text under columns; an empty cell has nothing to say, a dash is an unknown value.

    Without `spill` a narrow table leaves columns out and says so, for long lists.
    """

    columns: tuple[Column, ...]
    rows: tuple[tuple[str, ...], ...]
    spill: bool = True

    def without_empty_columns(self) -> Grid:
        """The grid without the columns in which no row has anything to say."""
        kept = [i for i in range(len(self.columns)) if any(row[i] for row in self.rows)]
        return Grid(
            tuple(self.columns[i] for i in kept),
            tuple(tuple(row[i] for i in kept) for row in self.rows),
            self.spill,
        )


@dataclass(frozen=True, slots=True)
class Facts:
    """Named sentences."""

    pairs: tuple[tuple[str, str], ...]


@dataclass(frozen=True, slots=True)
class Note:
    """A sentence; an aside explains what stands beside it and may be drawn with less weight."""

    text: str
    weight: Literal["strong", "normal", "aside"] = "aside"


@dataclass(frozen=True, slots=True)
class Verbatim:
    """Lines to be shown as they are: commands to copy, the end of a log (already made safe)."""

    lines: tuple[str, ...]


Block = Grid | Facts | Note | Verbatim


@dataclass(frozen=True, slots=True)
class Section:
    """Blocks under a title; the page's first section has none."""

    title: str
    blocks: tuple[Block, ...]
