"""Values in the text of a Python script: literals, names bound once, defaults of argparse."""

from __future__ import annotations

import ast
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

_DEEPEST = 20


class UnreadError(Exception):
    """An expression that is not read."""


@dataclass(slots=True)
class Place:
    """Where a value stands: from `start` to `end` of the text, in characters."""

    start: int
    end: int
    line: int


class Source:
    """A script's text, with what its names are bound to."""

    def __init__(self, text: str, tree: ast.Module) -> None:
        self._text = text
        self._bound = dict(_bindings(tree))
        self._options = dict(_options(tree))

    @property
    def names(self) -> dict[str, ast.expr]:
        """The options and the names, with what they are bound to."""
        return {**self._options, **self._bound}

    def value(self, node: ast.expr, depth: int = 0) -> Any:
        """The value of an expression.

        Raises:
            UnreadError: only running the script would tell.
        """
        if depth > _DEEPEST:
            raise UnreadError
        if isinstance(node, ast.Constant):
            return node.value
        if isinstance(node, ast.Name) and node.id in self._bound:
            return self.value(self._bound[node.id], depth + 1)
        if isinstance(node, ast.Attribute):
            return self._attribute(node, depth)
        if isinstance(node, ast.List | ast.Tuple | ast.Set):
            return [self.value(item, depth + 1) for item in node.elts]
        if isinstance(node, ast.Call):
            return _called(name_of(node.func))
        if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.Not):
            return not self.value(node.operand, depth + 1)
        return self._number(node, depth)

    def _attribute(self, node: ast.Attribute, depth: int) -> Any:
        name = name_of(node)
        if name.startswith("torch."):
            return name.removeprefix("torch.")
        if node.attr in self._options:
            return self.value(self._options[node.attr], depth + 1)
        raise UnreadError

    def _number(self, node: ast.expr, depth: int) -> Any:
        if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.USub):
            return -self.value(node.operand, depth + 1)
        if isinstance(node, ast.BinOp) and type(node.op) in _OPERATORS:
            left, right = self.value(node.left, depth + 1), self.value(node.right, depth + 1)
            plain = isinstance(left, int | float) and isinstance(right, int | float)
            if plain and abs(left) < 1e9 and abs(right) < 1e9:
                return _OPERATORS[type(node.op)](left, right)
        raise UnreadError

    def origin(self, node: ast.expr) -> ast.expr:
        """Where the value itself stands: behind a name, its binding."""
        if isinstance(node, ast.Name) and node.id in self._bound:
            return self.origin(self._bound[node.id])
        if isinstance(node, ast.Attribute) and not name_of(node).startswith("torch."):
            return self._options.get(node.attr, node)
        return node

    def place(self, node: ast.expr) -> Place:
        start, end = offset_of(self._text, node), offset_of(self._text, node, end=True)
        return Place(start, end, node.lineno)


_OPERATORS: dict[type[ast.operator], Callable[[Any, Any], Any]] = {
    ast.Add: lambda left, right: left + right,
    ast.Sub: lambda left, right: left - right,
    ast.Mult: lambda left, right: left * right,
    ast.FloorDiv: lambda left, right: left // right if right else 0,
}


def _called(name: str) -> Any:
    """What functions answer that need no run: bfloat16 is there on cards since Ampere."""
    last = name.rpartition(".")[2]
    if last == "attention_projections":
        return ["attention"]
    if last in ("is_bf16_supported", "is_bfloat16_supported", "is_torch_bf16_gpu_available"):
        return True
    raise UnreadError


def name_of(node: ast.expr) -> str:
    """The dotted name of what is called; empty if it is no name."""
    if isinstance(node, ast.Name):
        return node.id
    if isinstance(node, ast.Attribute):
        head = name_of(node.value)
        return f"{head}.{node.attr}" if head else node.attr
    return ""


def _bindings(tree: ast.Module) -> Iterator[tuple[str, ast.expr]]:
    """Names that are bound exactly once, with what they are bound to."""
    bound: dict[str, list[ast.expr | None]] = {}
    for node in ast.walk(tree):
        targets = node.targets if isinstance(node, ast.Assign) else []
        if isinstance(node, ast.AnnAssign | ast.AugAssign | ast.For):
            targets = [node.target]
        value = node.value if isinstance(node, ast.Assign | ast.AnnAssign) else None
        for target in targets:
            for name, given in _unpacked(target, value):
                bound.setdefault(name, []).append(given)
    for name, (first, *more) in bound.items():
        if first is not None and not more:
            yield name, first


def _unpacked(target: ast.expr, value: ast.expr | None) -> Iterator[tuple[str, ast.expr | None]]:
    """Each name of a target with its value; `A, B = 1, 2` has one for each."""
    if isinstance(target, ast.Tuple | ast.List) and isinstance(value, ast.Tuple | ast.List):
        starred = any(isinstance(element, ast.Starred) for element in (*target.elts, *value.elts))
        if not starred and len(target.elts) == len(value.elts):
            for element, given in zip(target.elts, value.elts, strict=True):
                yield from _unpacked(element, given)
            return
    for node in ast.walk(target):
        if isinstance(node, ast.Name):
            yield node.id, value if node is target else None


def _options(tree: ast.Module) -> Iterator[tuple[str, ast.expr]]:
    """The options of argparse by their names in the program, with their defaults."""
    for node in ast.walk(tree):
        if not (isinstance(node, ast.Call) and name_of(node.func).endswith("add_argument")):
            continue
        given = {keyword.arg: keyword.value for keyword in node.keywords}
        names = [argument.value for argument in node.args if isinstance(argument, ast.Constant)]
        long = next((option for option in names if str(option).startswith("--")), None)
        own = given.get("dest")
        name = own.value if isinstance(own, ast.Constant) else long
        if name and "default" in given:
            yield str(name).lstrip("-").replace("-", "_"), given["default"]


def offset_of(text: str, node: ast.expr | ast.keyword | ast.stmt, *, end: bool = False) -> int:
    """Where a node starts or ends in the text, in characters; ast counts bytes of UTF-8."""
    row = (node.end_lineno if end else node.lineno) or 1
    column = (node.end_col_offset if end else node.col_offset) or 0
    lines = text.split("\n")
    before = sum(len(line) + 1 for line in lines[: row - 1])
    return before + len(lines[row - 1].encode()[:column].decode())
