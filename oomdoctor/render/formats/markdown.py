"""A page as GitHub-flavoured markdown. Text is escaped, so it cannot become markup."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import TYPE_CHECKING

from oomdoctor.render.blocks import Block, Code, Facts, Grid, Note, Section, Sized
from oomdoctor.render.pages import sections_of
from oomdoctor.render.text import escape, one_line

if TYPE_CHECKING:
    from oomdoctor.records.report.report import Report
    from oomdoctor.render.formats import Style

_MARKUP = re.compile(r"([\\`*\[\]|~]|(?<!\w)_|_(?!\w)|\A[#+-](?=\s)|\A>)")


def render(report: Report, style: Style) -> str:
    """The page of a report."""
    return to_markdown(sections_of(report, style.look))


def to_markdown(sections: Sequence[Section]) -> str:
    """Sections under headings, grids as tables, facts as lists."""
    parts: list[str] = []
    for section in sections:
        if section.title:
            parts.append(f"### {_escaped(section.title.removesuffix(':'))}")
        parts += [_block(block) for block in section.blocks]
    return "\n\n".join(parts) + "\n"


def _block(block: Block) -> str:
    if isinstance(block, Note):
        return _escaped(block.text)
    if isinstance(block, Facts):
        return "\n".join(_fact(name, text) for name, text in block.pairs)
    if isinstance(block, Grid | Sized):
        block = (block.whole if isinstance(block, Sized) else block).without_empty_columns()
        names = [_escaped(column.name) for column in block.columns]
        rules = ["---:" if column.right else "---" for column in block.columns]
        rows = [[_escaped(cell) for cell in row] for row in block.rows]
        return "\n".join(f"| {' | '.join(row)} |" for row in [names, rules, *rows])
    if isinstance(block, Code):
        lines = [escape((first + line)[block.depth :]) for first, line, _ in block.lines()]
    else:
        lines = [escape(line) for line in block.lines]
    ticks = max((len(run) for line in lines for run in re.findall("`+", line)), default=0)
    fence = "`" * max(3, ticks + 1)
    return "\n".join([f"{fence}text", *lines, fence])


def _fact(name: str, text: str) -> str:
    if not name:  # more about the fact above
        return f"  - {_escaped(text)}"
    return f"- **{_escaped(name.removesuffix(':'))}**: {_escaped(text)}"


def _escaped(text: str) -> str:
    safe = _MARKUP.sub(r"\\\1", one_line(text))
    return safe.replace("&", "&amp;").replace("<", "&lt;")
