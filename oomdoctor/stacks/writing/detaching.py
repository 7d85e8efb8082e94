"""Where a loop keeps tensors with their graphs: a list of losses, or a sum of them.

Only the text is read: a name holds what the loop binds to it.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator

from oomdoctor.records.report.user_training import THIS_LINE, AddedCode
from oomdoctor.stacks.reading.python_values import name_of, offset_of

# Calls whose result has no graph.
_PLAIN = frozenset(
    {"item", "detach", "tolist", "numpy", "float", "int", "len", "range", "backward"}
)


def detached(path: str, text: str) -> tuple[AddedCode, ...]:
    """The lines of training loops that keep tensors from step to step, with `.detach()`.

    Raises:
        ValueError: there is none.
    """
    loops = [
        node
        for node in ast.walk(ast.parse(text))
        if isinstance(node, ast.For | ast.While)
        and any(called.endswith("backward") for called in _calls(node))
    ]
    kept = {
        statement.lineno: _with_detach(path, text, statement, value)
        for loop in loops
        for statement, value in _kept(loop)
    }
    if not kept:
        raise ValueError("no line of a loop keeps tensors from step to step")
    return tuple(kept.values())


def _calls(node: ast.AST) -> list[str]:
    return [name_of(call.func) for call in ast.walk(node) if isinstance(call, ast.Call)]


def _kept(loop: ast.AST) -> Iterator[tuple[ast.stmt, ast.expr]]:
    """The statements that add a tensor to what is there from before the loop, and the tensor."""
    statements = [node for node in ast.walk(loop) if isinstance(node, ast.stmt)]
    made = [node for node in statements if isinstance(node, ast.Assign)]
    tensors = {
        target.id
        for node in made
        for target in node.targets
        if isinstance(target, ast.Name) and _has_graph(node.value)
    }
    for node in statements:
        name, value = _added(node)
        again = [
            other
            for other in made
            if other is not node and any(ast.unparse(target) == name for target in other.targets)
        ]
        if value is None or again:
            continue
        if (isinstance(value, ast.Name) and value.id in tensors) or (
            not isinstance(value, ast.Name) and _has_graph(value)
        ):
            yield node, value


def _has_graph(value: ast.expr) -> bool:
    """Whether a value may be a tensor with a graph: the result of a call that is not plain."""
    called = [name.rpartition(".")[2] for name in _calls(value)]
    called += [node.func.attr for node in ast.walk(value)
               if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute)]  # fmt: skip
    return bool(called) and not _PLAIN & set(called)


def _added(node: ast.stmt) -> tuple[str, ast.expr | None]:
    """The name of what a statement adds to, and what it adds; None if it adds nothing."""
    if isinstance(node, ast.Expr) and isinstance(node.value, ast.Call):
        call = node.value
        if isinstance(call.func, ast.Attribute) and call.func.attr == "append" and call.args:
            return ast.unparse(call.func.value), call.args[0]
    if isinstance(node, ast.AugAssign) and isinstance(node.op, ast.Add):
        return ast.unparse(node.target), node.value
    if isinstance(node, ast.Assign) and isinstance(node.value, ast.BinOp):
        total = ast.unparse(node.targets[0])
        if isinstance(node.value.op, ast.Add) and ast.unparse(node.value.left) == total:
            return total, node.value.right
    return "", None


def _with_detach(path: str, text: str, statement: ast.stmt, value: ast.expr) -> AddedCode:
    start, end = offset_of(text, statement), offset_of(text, statement, end=True)
    first, last = offset_of(text, value), offset_of(text, value, end=True)
    source = text[first:last]
    simple = isinstance(value, ast.Name | ast.Attribute | ast.Call)
    code = f"{source if simple else f'({source})'}.detach()"
    whole = text[start:first] + code + text[last:end]
    return AddedCode(path, "instead", statement.lineno, THIS_LINE, whole)
