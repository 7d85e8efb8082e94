"""A page as text: drawn for a terminal of some width, or plain for a pipe.

If a table is too wide for the terminal, its least important columns move to a line below each row;
nothing is cut. In a pipe every row is one line, however long.
"""

from __future__ import annotations

import io
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from oomdoctor.render.blocks import Block, Code, Column, Facts, Grid, Note, Section, Sized, Verbatim
from oomdoctor.render.text import columns_of, escape, one_line, painted, tone, wrap, wrap_code
from oomdoctor.units import DASH

if TYPE_CHECKING:
    from rich.text import Text

    from oomdoctor.records.report.report import Report
    from oomdoctor.render.formats import Style

_GAP = "  "
_INDENT = "  "
_SHELLS = ("shell", "docker")  # names of code that a shell runs
_NARROWEST_TEXT = 36  # narrower text reads better on a line below the row


def render(report: Report, style: Style) -> str:
    """The page of a report: drawn for a terminal, or plain ASCII rows for a pipe."""
    from oomdoctor.render.pages import sections_of

    look = replace(style.look, signs=style.signs and style.terminal)
    return drawn(sections_of(report, look), style)


def drawn(sections: Sequence[Section], style: Style) -> str:
    """A page for a terminal or for a pipe."""
    if style.terminal:
        return to_terminal(sections, width=style.width, color=style.color)
    return to_plain(sections, color=style.color)


def to_plain(sections: Sequence[Section], *, color: bool = False) -> str:
    """The page for a pipe: unboxed full-width rows, nothing cut; `color` if it is forced."""
    lines: list[str] = []
    for section in sections:
        if lines:
            lines.append("")
        if section.title:
            lines.append(painted(one_line(section.title), "bold" if color else ""))
        for block in section.blocks:
            lines += _plain_block(block, _INDENT if section.title else "", color)
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


def _plain_block(block: Block, indent: str, color: bool) -> list[str]:
    if isinstance(block, Note):
        return [indent + one_line(block.text)]
    if isinstance(block, Verbatim):
        return [indent + escape(line) for line in block.lines]
    if isinstance(block, Code):
        return [indent + escape(first + line) for first, line, _ in block.lines()]
    if isinstance(block, Facts):
        size = max(len(one_line(name)) for name, _ in block.pairs)
        return [f"{indent}{one_line(n):<{size}}{_GAP}{one_line(t)}" for n, t in block.pairs]
    block = (block.whole if isinstance(block, Sized) else block).without_empty_columns()
    names = [[column.name for column in block.columns]] if block.head else []
    rows = [*names, *_clean(block)]
    widths = [max(len(row[i]) for row in rows) for i in range(len(block.columns))]
    return [
        indent
        + _GAP.join(
            _aligned(cell, size, column, color)
            for cell, size, column in zip(row, widths, block.columns, strict=True)
        )
        for row in rows
    ]


def _aligned(cell: str, size: int, column: Column, color: bool) -> str:
    space = " " * (size - len(cell))
    shown = painted(cell, tone(cell)) if color and column.tone else cell
    return space + shown if column.right else shown + space


def _terminal_block(block: Block, indent: str, width: int) -> list[Text]:
    from rich.text import Text

    if isinstance(block, Note):
        style = {"strong": "bold", "normal": "", "aside": "dim"}[block.weight]
        return [Text(line, style) for line in wrap(one_line(block.text), width, indent, indent)]
    if isinstance(block, Verbatim):
        return [Text(indent + escape(line)) for line in block.lines]
    if isinstance(block, Code):
        return [
            Text(part)
            for first, line, name in block.lines()
            for part in wrap_code(
                escape(line), width, indent + escape(first), shell=name in _SHELLS
            )
        ]
    if isinstance(block, Grid):
        return _terminal_grid(block, indent, width)
    if isinstance(block, Sized):
        grid, notes = _roomy(block, width - len(indent))
        lines = _terminal_grid(grid, indent, width)
        return lines + [line for note in notes for line in _terminal_block(note, indent, width)]
    size = max(len(one_line(name)) for name, _ in block.pairs)
    lines = []
    for name, text in block.pairs:
        head = f"{indent}{one_line(name):<{size}}{_GAP}"
        for line in wrap(one_line(text), width, head, " " * len(head)) or [head]:
            bold = len(head) if line.startswith(head) else 0
            lines.append(Text.assemble((line[:bold], "bold"), line[bold:]))
    return lines


def _terminal_grid(grid: Grid, indent: str, width: int) -> list[Text]:
    from rich.text import Text

    grid = grid.without_empty_columns()
    columns, rows = grid.columns, _clean(grid)
    room = width - len(indent)
    widths = _layout(columns, rows, room)
    kept = list(widths)
    lines = []
    if grid.head:
        names = _row(columns, [c.name for c in columns], widths, "bold")
        lines.append(Text(indent) + names)
    first, last = widths[kept[0]], kept[-1]
    below = indent + " " * (first + len(_GAP) if first <= 4 else 4)
    for row in rows:
        more: list[str] = []
        if columns[last].wraps and row[last]:
            row[last], *more = wrap(row[last], widths[last])
        lines.append(Text(indent) + _row(columns, row, widths))
        start = sum(widths[i] + len(_GAP) for i in kept[:-1])
        lines += [Text(indent + " " * start + line) for line in more]
        details = [
            column.detail.format(row[i])
            for i, column in enumerate(columns)
            if i not in kept and column.spills and row[i] not in ("", DASH)
        ]
        if grid.spill:
            outcomes = [row[i] for i, column in enumerate(columns) if i not in kept and column.tone]
            for line in _join(details, width, below):
                lines.append(Text(line, "dim"))
                for outcome in filter(tone, outcomes):
                    lines[-1].highlight_words([outcome], tone(outcome))
    left_out = [
        column.name
        for i, column in enumerate(columns)
        if i not in kept and not (grid.spill and column.spills)
    ]
    if left_out:
        text = f"not shown at this width: {', '.join(left_out)}; pipe the output or use --json"
        lines += [Text(line, "dim") for line in wrap(text, width, indent, indent)]
    return lines


def _roomy(block: Sized, room: int) -> tuple[Grid, tuple[Note, ...]]:
    """The first version of a grid that keeps all its columns in the room, or else the last."""
    for grid, notes in block.drawn:
        shown = grid.without_empty_columns()
        widths = _layout(shown.columns, _clean(shown), room)
        total = sum(widths.values()) + len(_GAP) * (len(widths) - 1)
        if len(widths) == len(shown.columns) and total <= room:
            return grid, notes
    return block.drawn[-1]


def _row(
    columns: Sequence[Column], cells: Sequence[str], widths: Mapping[int, int], style: str = ""
) -> Text:
    from rich.text import Text

    parts: list[str | tuple[str, str]] = []
    for i, width in widths.items():
        space = " " * (width - columns_of(cells[i]))
        cell = (cells[i], style or (tone(cells[i]) if columns[i].tone else ""))
        parts += [_GAP] if parts else []
        parts += [space, cell] if columns[i].right else [cell, space]
    return Text.assemble(*parts)


def _layout(columns: Sequence[Column], rows: Sequence[Sequence[str]], room: int) -> dict[int, int]:
    """The widths of the columns that stay in the table; the least important go first."""
    widths = {
        i: max(columns_of(text) for text in (column.name, *(row[i] for row in rows)))
        for i, column in enumerate(columns)
    }
    for limit in range(max(column.importance for column in columns), -1, -1):
        kept = {i: widths[i] for i, column in enumerate(columns) if column.importance <= limit}
        *others, last = kept
        left = room - sum(widths[i] + len(_GAP) for i in others)
        if left >= widths[last]:
            break
        if columns[last].wraps:
            words = (columns_of(word) for row in rows for word in row[last].split())
            if left >= max([_NARROWEST_TEXT, *words]):
                return {**kept, last: left}
    return kept


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
