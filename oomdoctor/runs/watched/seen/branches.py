"""Which reads of unknown values may have decided something, by the source of their line."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

from oomdoctor.records.inside.run import UnknownBranch
from oomdoctor.runs.watched.seen.places import shown_file

# Calls that make a number of a tensor. What only keeps or prints that number decides nothing.
_NUMBERS = frozenset({"item", "float", "tolist", "cpu", "numpy", "detach", "round"})
# An unknown value is finite, as it would be in a training that goes well.
_FINITE = frozenset({"isnan", "isinf", "isfinite"})
_TESTS = (ast.If, ast.While, ast.Assert, ast.IfExp, ast.comprehension, ast.Match, ast.Compare)


def unknown_branches(reads: list[dict[str, Any]]) -> tuple[UnknownBranch, ...]:
    """The user's lines that may have decided something by an unknown value, most frequent first."""
    counts: dict[tuple[str, int], int] = {}
    for read in reads:
        if may_decide(read["inner_file"], read["inner_line"]):
            place = (shown_file(read["file"]), read["line"])
            counts[place] = counts.get(place, 0) + read["count"]
    found = sorted(counts.items(), key=lambda item: -item[1])
    return tuple(UnknownBranch(file, line, count) for (file, line), count in found)


def may_decide(file: str, line: int) -> bool:
    """Whether the code of a line does more with a number than keep it, print it or format it."""
    innermost = _innermost(file, line)
    if innermost is None:
        return True
    nodes = list(_code(innermost))
    calls = {_name(node) for node in nodes}
    if calls & _FINITE:
        return False
    if any(isinstance(node, _TESTS) and not _asks_for_a_type(node) for node in nodes):
        return True
    return not any(_makes_a_number(node) for node in nodes)


def _code(statement: ast.AST) -> Iterator[ast.AST]:
    """A statement and what is in it; of `if` and `while` without their bodies."""
    if isinstance(statement, ast.If | ast.While):
        yield statement
        yield from ast.walk(statement.test)
    else:
        yield from ast.walk(statement)


def _asks_for_a_type(node: ast.AST) -> bool:
    return isinstance(node, ast.IfExp) and _name(node.test) == "isinstance"


def _makes_a_number(node: ast.AST) -> bool:
    if isinstance(node, ast.JoinedStr):
        return True
    name = _name(node)
    return name in _NUMBERS or name == "print" or "log" in name


def _name(node: ast.AST) -> str:
    """The name of what a call calls; empty for other code."""
    if not isinstance(node, ast.Call):
        return ""
    return str(getattr(node.func, "attr", None) or getattr(node.func, "id", ""))


def _innermost(file: str, line: int) -> ast.AST | None:
    """The smallest statement at a line; of a compound one only its head."""
    tree = _tree(file)
    if tree is None:
        return None
    found: ast.stmt | None = None
    for node in ast.walk(tree):
        if not isinstance(node, ast.stmt) or (found is not None and node.lineno < found.lineno):
            continue
        if node.lineno <= line <= (node.end_lineno or node.lineno):
            found = node
    if isinstance(found, ast.For):
        return found.iter
    if isinstance(found, ast.With | ast.FunctionDef | ast.ClassDef | ast.Try):
        return None
    return found


@cache
def _tree(file: str) -> ast.Module | None:
    try:
        return ast.parse(Path(file).read_bytes())
    except (OSError, SyntaxError, ValueError):
        return None
