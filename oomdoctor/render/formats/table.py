"""A page as text: drawn for a terminal of some width, or plain for a pipe.

If a table is too wide for the terminal, its least important columns move to a line below each row;
nothing is cut. In a pipe every row is one line, however long.
"""

from __future__ import annotations

import io
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING

from oomdoctor.render.blocks import Block, Column, Facts, Grid, Note, Section, Verbatim
from oomdoctor.render.text import escape, one_line, wrap
from oomdoctor.units import DASH

if TYPE_CHECKING:
    from rich.text import Text

    from oomdoctor.records.report import Report
    from oomdoctor.render.formats import Style

_GAP = "  "
_INDENT = "  "
_NARROWEST_TEXT = 36  # narrower text reads better on a line below the row
_TONES = (
    ("fits", "green"),
    ("yes", "green"),
    ("out of", "red"),
    ("crashed", "red"),
    ("failed", "red"),
    ("timed out", "red"),
    ("skipped", "yellow"),
    ("short by", "yellow"),
    ("missing", "yellow"),
    ("no", "yellow"),
)


def render(report: Report, style: Style) -> str:
    """The page of a report: drawn for a terminal, or plain ASCII rows for a pipe."""
    from oomdoctor.render.pages import sections_of

    signs = style.signs and style.terminal
    sections = sections_of(report, verbose=style.verbose, signs=signs)
    if style.terminal:
        return to_terminal(sections, width=style.width, color=style.color)
    return to_plain(sections)


def to_plain(sections: Sequence[Section]) -> str:
    """The page for a pipe: unboxed full-width rows, no color, nothing cut."""
    lines: list[str] = []
    for section in sections:
        if lines:
            lines.append("")
        if section.title:
            lines.append(one_line(section.title))
        for block in section.blocks:
            lines += _plain_block(block, _INDENT if section.title else "")
    return "\n".join(line.rstrip() for line in lines) + "\n"


def to_terminal(sections: Sequence[Section], *, width: int, color: bool) -> str:
    """The page for a terminal of `width` columns; without `color` there is no escape sequence."""
    from rich.console import Console
    from rich.text import Text

    out = io.StringIO()
    console = Console(
        file=out,
        width=width,
        force_terminal=color,
        color_system="standard" if color else None,
        no_color=not color,
        markup=False,
        emoji=False,
        highlight=False,
        legacy_windows=False,
    )
    for number, section in enumerate(sections):
        if number:
            console.print()
        if section.title:
            for line in wrap(one_line(section.title), width):
                console.print(Text(line, style="bold"), soft_wrap=True)
        indent = _INDENT if section.title else ""
        for block in section.blocks:
            for text in _terminal_block(block, indent, width):
                text.rstrip()
                console.print(text, soft_wrap=True)
    return out.getvalue()


def _plain_block(block: Block, indent: str) -> list[str]:
    if isinstance(block, Note):
        return [indent + one_line(block.text)]
    if isinstance(block, Verbatim):
        return [indent + escape(line) for line in block.lines]
    if isinstance(block, Facts):
        size = max(len(one_line(name)) for name, _ in block.pairs)
        return [f"{indent}{one_line(n):<{size}}{_GAP}{one_line(t)}" for n, t in block.pairs]
    block = block.without_empty_columns()
    rows = [[column.name for column in block.columns], *_clean(block)]
    widths = [max(len(row[i]) for row in rows) for i in range(len(block.columns))]
    return [
        indent
        + _GAP.join(
            cell.rjust(size) if column.right else cell.ljust(size)
            for cell, size, column in zip(row, widths, block.columns, strict=True)
        )
        for row in rows
    ]


def _terminal_block(block: Block, indent: str, width: int) -> list[Text]:
    from rich.text import Text

    if isinstance(block, Note):
        style = {"strong": "bold", "normal": "", "aside": "dim"}[block.weight]
        return [Text(line, style) for line in wrap(one_line(block.text), width, indent, indent)]
    if isinstance(block, Verbatim):
        return [Text(indent + escape(line)) for line in block.lines]
    if isinstance(block, Grid):
        return _terminal_grid(block, indent, width)
    size = max(len(one_line(name)) for name, _ in block.pairs)
    lines = []
    for name, text in block.pairs:
        head = f"{indent}{one_line(name):<{size}}{_GAP}"
        for line in wrap(one_line(text), width, head, " " * len(head)) or [head]:
            bold = len(head) if line.startswith(head) else 0
            lines.append(Text.assemble((line[:bold], "bold"), line[bold:]))
    return lines


def _terminal_grid(grid: Grid, indent: str, width: int) -> list[Text]:
    from rich.cells import cell_len
    from rich.text import Text

    grid = grid.without_empty_columns()
    columns, rows = grid.columns, _clean(grid)
    room = width - len(indent)
    kept, widths = _layout(columns, rows, room, cell_len)
    lines = [
        Text(indent) + _row(columns, kept, [c.name for c in columns], widths, cell_len, "bold"),
        Text(indent + _GAP.join("─" * widths[i] for i in kept)[:room], "dim"),
    ]
    below = indent + " " * (widths[0] + len(_GAP) if widths[0] <= 4 else 4)
    for row in rows:
        more: list[str] = []
        if columns[kept[-1]].wraps and row[kept[-1]]:
            row[kept[-1]], *more = wrap(row[kept[-1]], widths[kept[-1]])
        lines.append(Text(indent) + _row(columns, kept, row, widths, cell_len))
        start = sum(widths[i] + len(_GAP) for i in kept[:-1])
        lines += [Text(indent + " " * start + line) for line in more]
        details = [
            column.detail.format(row[i])
            for i, column in enumerate(columns)
            if i not in kept and row[i] not in ("", DASH)
        ]
        if grid.spill:
            lines += [Text(line, "dim") for line in _join(details, width, below)]
    left_out = [column.name for i, column in enumerate(columns) if i not in kept]
    if left_out and not grid.spill:
        text = f"not shown at this width: {', '.join(left_out)}; pipe the output or use --json"
        lines += [Text(line, "dim") for line in wrap(text, width, indent, indent)]
    return lines


def _row(
    columns: Sequence[Column],
    kept: Sequence[int],
    cells: Sequence[str],
    widths: Mapping[int, int],
    cell_len: Callable[[str], int],
    style: str = "",
) -> Text:
    from rich.text import Text

    parts: list[str | tuple[str, str]] = []
    for i in kept:
        space = " " * (widths[i] - cell_len(cells[i]))
        cell = (cells[i], style or (_tone(cells[i]) if columns[i].tone else ""))
        parts += [_GAP] if parts else []
        parts += [space, cell] if columns[i].right else [cell, space]
    return Text.assemble(*parts)


def _layout(
    columns: Sequence[Column],
    rows: Sequence[Sequence[str]],
    room: int,
    cell_len: Callable[[str], int],
) -> tuple[list[int], dict[int, int]]:
    """The columns that stay in the table, and their widths; the least important go first."""
    widths = {
        i: max(cell_len(text) for text in (column.name, *(row[i] for row in rows)))
        for i, column in enumerate(columns)
    }
    for limit in range(max(column.importance for column in columns), -1, -1):
        kept = [i for i, column in enumerate(columns) if column.importance <= limit]
        last, gaps = kept[-1], len(_GAP) * (len(kept) - 1)
        left = room - gaps - sum(widths[i] for i in kept[:-1])
        if left >= widths[last]:
            break
        if columns[last].wraps:
            words = (cell_len(word) for row in rows for word in row[last].split())
            if left >= max([_NARROWEST_TEXT, *words]):
                return kept, {**widths, last: left}
    return kept, widths


def _join(details: Sequence[str], width: int, indent: str) -> list[str]:
    """Details on as few lines as possible. A detail is broken only if it is longer than a line."""
    lines: list[str] = []
    for detail in details:
        if lines and len(lines[-1]) + 3 + len(detail) <= width:
            lines[-1] += f" · {detail}"
        else:
            lines += wrap(detail, width, indent, indent)
    return lines


def _clean(grid: Grid) -> list[list[str]]:
    return [[one_line(cell) for cell in row] for row in grid.rows]


def _tone(cell: str) -> str:
    return next((style for word, style in _TONES if cell.startswith(word)), "")
