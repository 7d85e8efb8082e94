"""A report as a document for programs and other pages: JSON, CSV, markdown."""

from __future__ import annotations

import csv
import io
import re
import types
from collections.abc import Iterator, Sequence
from dataclasses import fields, is_dataclass
from typing import Any, Literal, Union, get_args, get_origin, get_type_hints

from oomdoctor.records import codec
from oomdoctor.records.config import TrainConfig
from oomdoctor.records.measurement import Breakdown, OomEvent, PhaseMemory
from oomdoctor.records.report import Report
from oomdoctor.records.result import Failure, ProbeResult
from oomdoctor.render.blocks import Block, Facts, Grid, Note, Section
from oomdoctor.render.text import escape, one_line

# JSON escapes C0 controls itself; DEL, C1 controls, invisible and bidirectional characters and lone
# surrogates may stand raw in a JSON text, and a terminal or an encoder may trip over them.
_RAW_IN_JSON = re.compile(
    "[\x7f-\x9f\u00ad\u061c\u200b-\u200f\u2028-\u202e\u2060-\u206f\ufeff\ud800-\udfff]"
)
_MARKDOWN = re.compile(r"([\\`*\[\]|~]|(?<!\w)_|_(?!\w)|\A[#+-](?=\s)|\A>)")
_PHASES = ("load", "forward", "backward", "optimizer", "eval")
_SCALARS = (str, int, float, bool)


def to_json(record: object) -> str:
    """A record, or a list of them, as JSON: all keys present, null when unknown."""
    text = codec.dumps(record)
    return _RAW_IN_JSON.sub(lambda found: f"\\u{ord(found[0]):04x}", text)


def to_csv(report: Report) -> str:
    """One row a result, those that do not fit too. A header is the path of the key in JSON.

    Sizes are integers in bytes, unknown is empty. `place` is the place in the ranking, from 1.
    Text that a spreadsheet would take for a formula gets an apostrophe in front.
    """
    place = {key: number for number, key in enumerate(report.ranking, 1)}
    paths = list(_paths())
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\n")
    writer.writerow(["place", *(".".join(path) for path in paths)])
    for result in report.results:
        writer.writerow(
            [place.get(result.key, ""), *(csv_cell(_value(result, path)) for path in paths)]
        )
    return out.getvalue()


def to_markdown(sections: Sequence[Section]) -> str:
    """The page as GitHub-flavoured markdown; text is escaped, so it cannot become markup."""
    parts: list[str] = []
    for section in sections:
        if section.title:
            parts.append(f"### {_escape_markdown(section.title.removesuffix(':'))}")
        parts += [_markdown_block(block) for block in section.blocks]
    return "\n\n".join(parts) + "\n"


def _markdown_block(block: Block) -> str:
    if isinstance(block, Note):
        return _escape_markdown(block.text)
    if isinstance(block, Facts):
        return "\n".join(
            f"- **{_escape_markdown(name.removesuffix(':'))}**: {_escape_markdown(text)}"
            for name, text in block.pairs
        )
    if isinstance(block, Grid):
        block = block.without_empty_columns()
        names = [_escape_markdown(column.name) for column in block.columns]
        rules = ["---:" if column.right else "---" for column in block.columns]
        rows = [[_escape_markdown(cell) for cell in row] for row in block.rows]
        return "\n".join(f"| {' | '.join(row)} |" for row in [names, rules, *rows])
    lines = [escape(line) for line in block.lines]
    ticks = max((len(run) for line in lines for run in re.findall("`+", line)), default=0)
    fence = "`" * max(3, ticks + 1)
    return "\n".join([f"{fence}text", *lines, fence])


def _escape_markdown(text: str) -> str:
    safe = _MARKDOWN.sub(r"\\\1", one_line(text))
    return safe.replace("&", "&amp;").replace("<", "&lt;")


def _paths() -> Iterator[tuple[str, ...]]:
    """Every scalar of a result that makes a column, in the order of the records."""
    nested = {"config": TrainConfig, "breakdown": Breakdown, "oom": OomEvent, "failure": Failure}
    for field in fields(ProbeResult):
        if field.name in nested:
            for inner in fields(nested[field.name]):
                if inner.name != "log_tail":
                    yield field.name, inner.name
        elif field.name == "phases":
            for phase in _PHASES:
                for inner in fields(PhaseMemory):
                    yield field.name, phase, inner.name
        elif field.name == "notes" or _is_scalar(get_type_hints(ProbeResult)[field.name]):
            yield (field.name,)


def _is_scalar(hint: Any) -> bool:
    if get_origin(hint) in (Union, types.UnionType):
        return all(_is_scalar(arg) for arg in get_args(hint))
    return get_origin(hint) is Literal or hint is type(None) or hint in _SCALARS


def _value(record: Any, path: tuple[str, ...]) -> Any:
    for name in path:
        if record is None:
            return None
        record = getattr(record, name) if is_dataclass(record) else record.get(name)
    return record


def csv_cell(value: Any) -> str | int | float:
    """A value as a cell: unknown is empty, text is one line and no formula."""
    if value is None:
        return ""
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, int | float):
        return value
    text = one_line("; ".join(value) if isinstance(value, tuple) else value)
    return f"'{text}" if text.startswith(("=", "+", "-", "@")) else text
