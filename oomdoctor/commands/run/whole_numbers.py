"""Whether a floating-point number that a line reads from the device may become a size.

A size is an integer, so somewhere such a number is rounded: `int(x.item())`. The number is followed
by name through the file of the read: through variables where Python would find them, attributes,
arguments of functions and what these return.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from functools import cache

from oomdoctor.commands.run import places
from oomdoctor.commands.run.places import name_of_call

_CASTS = frozenset({"int", "long", "astype", "int32", "int64"})
_ROUNDS = _CASTS | {"round", "ceil", "floor", "trunc", "rint", "range", "arange"}
_KEEPS = frozenset({"append", "extend", "add", "insert", "setdefault"})
# What these calls return does not depend on the number itself.
_FORGETS = frozenset({"len", "isinstance", "type", "id", "str", "isnan", "isinf", "isfinite"})
_FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda)
_ASSIGNS = (ast.Assign, ast.AnnAssign, ast.AugAssign, ast.NamedExpr)
_PASS_ON = (*_ASSIGNS, ast.Call, ast.For, ast.comprehension, ast.Return)
_Scope = tuple[ast.AST, ...]
"""The functions around a piece of code, from the outermost."""
_Name = tuple[ast.AST | None, str]
"""The function that a variable belongs to, None for attributes and all others, and its name."""


@cache
def may_become_size(file: str, line: int, *, own: bool) -> bool:
    """Whether a number that is read at a line is rounded there or later, and not only for a log.

    In a file that is not the user's own, only the function of the line is looked at: names of
    attributes mean too much in a large library.
    """
    read, tree = places.code_at(file, line), places.tree_of(file)
    if read is None or tree is None:
        return False
    flow = _Flow(tree, read, everywhere=own)
    flow.follow()
    rounded = (call for call in flow.rounding() if not places.is_only_logged(file, call.lineno))
    return any(rounded)


class _Flow:
    """The names in a file that a number has reached; `follow` adds all that it can reach."""

    def __init__(self, tree: ast.Module, read: ast.AST, *, everywhere: bool) -> None:
        """The number is what the code `read` makes of a tensor, or else all of it."""
        parts = [node for node in places.parts_of(read) if isinstance(node, ast.expr)]
        calls = [node for node in parts if name_of_call(node) in places.NUMBERS]
        self._sources: set[ast.AST] = set(calls or parts)
        every = list(_with_scopes(tree, ()))
        around = next((scope for node, scope in every if node is read), ())
        where = () if everywhere else around[:1]
        self._nodes = [
            (node, scope)
            for node, scope in every
            if isinstance(node, _PASS_ON) and scope[: len(where)] == where
        ]
        self._functions: dict[str, list[ast.FunctionDef | ast.AsyncFunctionDef]] = {}
        self._bound: set[tuple[ast.AST, str]] = set()
        for node, scope in every:
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
                self._functions.setdefault(node.name, []).append(node)
            if scope and isinstance(node, ast.arg):
                self._bound.add((scope[-1], node.arg))
            if scope and isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
                self._bound.add((scope[-1], node.id))
        self._reached: set[_Name] = set()

    def follow(self) -> None:
        """Pass the number on until no name is new."""
        size = -1
        while size < len(self._reached):
            size = len(self._reached)
            for node, scope in self._nodes:
                self._reached.update(self._given(node, scope))

    def rounding(self) -> Iterator[ast.Call]:
        """The calls that make an integer of the number; `round(x, 4)` makes none."""
        for node, scope in self._nodes:
            if isinstance(node, ast.Call) and (name := name_of_call(node)) in _ROUNDS:
                keeps_digits = name == "round" and len(node.args) > 1
                if not keeps_digits and self._is_in(node, scope):
                    yield node

    def _given(self, node: ast.AST, scope: _Scope) -> Iterator[_Name]:
        """The names that a piece of code gives the number to."""
        if isinstance(node, ast.Call):
            if name_of_call(node) in _KEEPS and any(self._is_in(arg, scope) for arg in node.args):
                yield from self._names(node.func, scope)
            for function in self._functions.get(name_of_call(node), ()):
                for argument, value in _arguments(function, node):
                    if self._is_in(value, scope):
                        yield function, argument
        elif isinstance(node, ast.For | ast.comprehension):
            if self._is_in(node.iter, scope):
                yield from self._names(node.target, scope)
        elif isinstance(node, ast.Return):
            if node.value is not None and self._is_in(node.value, scope):
                yield None, getattr(scope[-1], "name", "")
        elif isinstance(node, _ASSIGNS) and node.value and self._is_in(node.value, scope):
            for target in node.targets if isinstance(node, ast.Assign) else [node.target]:
                yield from self._names(target, scope)

    def _is_in(self, node: ast.AST, scope: _Scope) -> bool:
        """Whether the number is in the value of an expression."""
        if node in self._sources:
            return True
        name = name_of_call(node)
        if name in _FORGETS or isinstance(node, ast.Compare):
            return False
        named: set[_Name] = {(None, name)} if name else set()
        if isinstance(node, ast.Name | ast.Attribute):
            named.update(self._names(node, scope))
        if named & self._reached:
            return True
        return any(self._is_in(child, scope) for child in ast.iter_child_nodes(node))

    def _names(self, target: ast.AST, scope: _Scope) -> Iterator[_Name]:
        """The names in a target: variables, attributes, and what an element is an element of."""
        if isinstance(target, ast.Name):
            owners = (each for each in reversed(scope) if (each, target.id) in self._bound)
            yield next(owners, None), target.id
        elif isinstance(target, ast.Attribute) and target.attr not in _KEEPS:
            yield None, target.attr
        elif isinstance(target, ast.Attribute | ast.Subscript | ast.Starred):
            yield from self._names(target.value, scope)
        elif isinstance(target, ast.Tuple | ast.List):
            for element in target.elts:
                yield from self._names(element, scope)


def _arguments(
    function: ast.FunctionDef | ast.AsyncFunctionDef, call: ast.Call
) -> Iterator[tuple[str, ast.expr]]:
    """The arguments of a function and what a call gives them; without * and **."""
    names = [each.arg for each in (*function.args.posonlyargs, *function.args.args)]
    if isinstance(call.func, ast.Attribute):
        names = names[1:]  # self
    yield from zip(names, call.args, strict=False)
    yield from ((each.arg, each.value) for each in call.keywords if each.arg)


def _with_scopes(node: ast.AST, scope: _Scope) -> Iterator[tuple[ast.AST, _Scope]]:
    for child in ast.iter_child_nodes(node):
        yield child, scope
        yield from _with_scopes(child, (*scope, child) if isinstance(child, _FUNCTIONS) else scope)
