"""Which reads of unknown values may have decided something, by the source of their line."""

from __future__ import annotations

import ast
from functools import cache
from pathlib import Path
from typing import Any

from oomdoctor.records.run import UnknownBranch
from oomdoctor.runs.watched.places import shown_file

# Calls that make a number of a tensor. What only keeps or prints that number decides nothing.
_NUMBERS = frozenset({"item", "float", "tolist", "cpu", "numpy", "detach", "round"})
_TESTS = (ast.If, ast.While, ast.Assert, ast.IfExp, ast.comprehension, ast.Match, ast.BoolOp)


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
    for node in ast.walk(innermost):
        if isinstance(node, (*_TESTS, ast.Compare)):
            return True
    return not any(_makes_a_number(node) for node in ast.walk(innermost))


def _makes_a_number(node: ast.AST) -> bool:
    if isinstance(node, ast.JoinedStr):
        return True
    if not isinstance(node, ast.Call):
        return False
    name = str(getattr(node.func, "attr", None) or getattr(node.func, "id", ""))
    return name in _NUMBERS or name == "print" or "log" in name


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
