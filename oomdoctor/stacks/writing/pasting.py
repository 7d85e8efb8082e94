"""Pastes code into a script at the place that it is for: below a call, instead of it, or in it."""

from __future__ import annotations

import ast
import textwrap
from collections.abc import Sequence

from oomdoctor.records.report.user_training import THIS_LINE, AddedCode
from oomdoctor.stacks.reading.python_values import name_of, offset_of
from oomdoctor.stacks.writing.python_patch import call_name, with_keyword


def pasted(text: str, codes: Sequence[AddedCode]) -> str:
    """The script with the code in it, and its imports at the top. Lines are those of `text`.

    Raises:
        ValueError: it belongs around lines that are not known.
    """
    for code in sorted(codes, key=lambda code: code.line or 0, reverse=True):
        if code.line is None:
            raise ValueError(f"you have to place the code {code.where}")
        if code.where == THIS_LINE:
            statements = (n for n in ast.walk(ast.parse(text)) if isinstance(n, ast.stmt))
            old = next(node for node in statements if node.lineno == code.line)
            text = text[: offset_of(text, old)] + code.code + text[offset_of(text, old, end=True) :]
        elif code.place == "below":
            text = _below(text, code.line, code.code)
        else:
            text = _at_call(text, code, code.line)
    names = dict.fromkeys(name for code in codes for name in code.imports)
    return _with_imports(text, [name for name in names if name not in text.split("\n")])


def _below(text: str, line: int, code: str) -> str:
    rows = text.split("\n")
    statements = [node for node in ast.walk(ast.parse(text)) if isinstance(node, ast.stmt)]
    above = next(node for node in statements if node.end_lineno == line)
    rows[line:line] = textwrap.indent(code, " " * above.col_offset).split("\n")
    return "\n".join(rows)


def _at_call(text: str, code: AddedCode, line: int) -> str:
    """The text with the code as a keyword of the call that starts on the line, or instead of it."""
    calls = [
        node
        for node in ast.walk(ast.parse(text))
        if isinstance(node, ast.Call)
        and node.lineno == line
        and f" {(call_name if code.place == 'keyword' else _called)(node)}(...)" in code.where
    ]
    if not calls:
        raise ValueError(f"you have to place the code {code.where}")
    call = calls[0]
    body = textwrap.indent(code.code, " " * call.col_offset).lstrip()
    if code.place == "keyword":
        return with_keyword(text, call, body)
    return text[: offset_of(text, call)] + body + text[offset_of(text, call, end=True) :]


def _called(call: ast.Call) -> str:
    return name_of(call.func)


def _with_imports(text: str, imports: Sequence[str]) -> str:
    """The text with imports before its first one that is no `from __future__`."""
    if not imports:
        return text
    body = ast.parse(text).body
    first = next(
        (
            node.lineno - 1
            for node in body
            if isinstance(node, ast.Import)
            or (isinstance(node, ast.ImportFrom) and node.module != "__future__")
        ),
        0,
    )
    rows = text.split("\n")
    rows[first:first] = imports
    return "\n".join(rows)
