"""Finds the line of each key in a TOML text, because tomllib gives no line numbers.

Only for texts that tomllib accepts. Keys in an unusual place (inline arrays of tables) get the line
of the statement around them.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, field

from oomdoctor.system.toml_text import STRING_OR_COMMENT

_TOKEN = re.compile(rf"{STRING_OR_COMMENT}|[\[\]{{}}]|\n", re.DOTALL)
_PART = r"""(?:[A-Za-z0-9_-]+|"[^"\n]*"|'[^'\n]*')"""
_NAME = re.compile(rf"\s*({_PART})\s*(?:\.\s*({_PART}))?")
_HEADER = re.compile(r"\s*(\[\[?)([^\]]*)\]")


@dataclass(slots=True)
class Lines:
    """Line numbers, from 1. `tables` counts each `[[name]]` from 0; a plain `[name]` is 0."""

    tables: dict[tuple[str, int], int] = field(default_factory=dict)
    keys: dict[tuple[str, int, str], int] = field(default_factory=dict)

    def of(self, table: str, index: int = 0, key: str | None = None) -> int:
        """The line of a key in a table, else of the table, else of a key of that name, else 1."""
        if key is not None and (table, index, key) in self.keys:
            return self.keys[table, index, key]
        return self.tables.get((table, index)) or self.keys.get(("", 0, table), 1)


def find_lines(text: str) -> Lines:
    """The line of every table header and every key; keys before the first header are in ""."""
    lines = Lines()
    table, index, counts = "", 0, dict[str, int]()
    for line, statement in _statements(text):
        header = _HEADER.match(statement)
        names = _names(header[2] if header else statement)
        if not names:
            continue
        if header and len(names) == 1:
            table = names[0]
            index = counts.get(table, 0) if header[1] == "[[" else 0
            counts[table] = counts.get(table, 0) + 1
            lines.tables.setdefault((table, index), line)
        elif header:  # [rung.lora] belongs to the last [[rung]]
            table, index = names[0], max(0, counts.get(names[0], 0) - 1)
            lines.keys.setdefault((table, index, names[1]), line)
        else:
            lines.keys.setdefault((table, index, names[0]), line)
            if table == "" and len(names) == 2:  # defaults.method = "lora"
                lines.keys.setdefault((names[0], 0, names[1]), line)
    return lines


def _names(text: str) -> list[str]:
    match = _NAME.match(text)
    return [part.strip("\"'") for part in match.groups() if part] if match else []


def _statements(text: str) -> Iterator[tuple[int, str]]:
    """Each statement with its first line; brackets and strings may span lines."""
    begin, depth, line, line_of_begin = 0, 0, 1, 1
    for token in _TOKEN.finditer(text):
        word = token[0]
        line += word.count("\n")
        if word in "[{":
            depth += 1
        elif word in "]}":
            depth -= 1
        elif word == "\n" and depth == 0:
            yield line_of_begin, text[begin : token.start()]
            begin, line_of_begin = token.end(), line
    yield line_of_begin, text[begin:]
