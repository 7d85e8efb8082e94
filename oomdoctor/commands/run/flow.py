"""What a number that a line reads from the device reaches: sizes, and branches.

The number is followed by name through all files of the user: through variables where Python would
find them, attributes, arguments of functions and what these return.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from typing import TypeGuard

from oomdoctor.commands.run import places
from oomdoctor.commands.run.places import name_of_call

_CASTS = frozenset({"int", "long", "astype", "int32", "int64"})
_ROUNDS = _CASTS | {"round", "ceil", "floor", "trunc", "rint", "range", "arange"}
_KEEPS = frozenset(
    {"append", "appendleft", "extend", "add", "insert", "put", "setdefault", "update"}
)
# They make a selection of a mask, or take it to the device, where it selects.
_SELECTS = frozenset(
    {"where", "nonzero", "flatnonzero", "argwhere", "compress", "extract", "masked_select"}
    | {"tensor", "as_tensor", "from_numpy", "to", "cuda"}
)
# What these calls and attributes give does not depend on the number itself.
_FORGETS = frozenset(
    {"len", "isinstance", "type", "id", "str", "isnan", "isinf", "isfinite", "size"}
)
_SHAPES = frozenset({"shape", "ndim", "dtype", "device"})
_FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda)
_ASSIGNS = (ast.Assign, ast.AnnAssign, ast.AugAssign, ast.NamedExpr)
_GIVES_BACK = (ast.Return, ast.Yield)
BRANCHES = (ast.If, ast.While, ast.IfExp)
_PASS_ON = (
    *(*_ASSIGNS, *_GIVES_BACK, *BRANCHES),
    *(ast.Call, ast.For, ast.comprehension, ast.Subscript),
)
# In what these give, an element of a list is where it was.
_KEEP_PLACES = (ast.Assign, ast.AnnAssign, ast.NamedExpr, ast.Return, ast.Call, ast.Attribute)
Branch = ast.If | ast.While | ast.IfExp
_Function = ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda
_Scope = tuple[ast.AST, ...]
"""The functions around a piece of code, from the outermost."""
_Place = tuple[ast.AST, _Scope, str]
"""A piece of code, the functions around it, and its file."""
_Name = tuple[ast.AST | None, str]
"""The function that a variable belongs to, None for attributes and all others, and its name."""
_Kind = tuple[bool, int | None]
"""Whether it is a mask of the number, and which element of a list it is, if that is known."""


def _branches(node: ast.AST) -> TypeGuard[Branch]:
    return isinstance(node, BRANCHES)


def read_at(file: str, line: int) -> list[ast.expr]:
    """The code of a line that makes a number of a tensor; all of it, if no call does so."""
    code = places.code_at(file, line)
    parts = [] if code is None else list(places.parts_of(code))
    expressions = [node for node in parts if isinstance(node, ast.expr)]
    return [node for node in expressions if name_of_call(node) in places.NUMBERS] or expressions


def given_at(file: str, line: int) -> set[ast.AST]:
    """What a line assigns or returns."""
    code = places.code_at(file, line)
    statements = () if code is None else places.parts_of(code)
    given = (each.value for each in statements if isinstance(each, (*_ASSIGNS, ast.Return)))
    return {value for value in given if value is not None}


@dataclass(frozen=True, slots=True, eq=False)
class Reached:
    """A branch that a number decides.

    `numbers` are the pieces of code in its condition that are the number itself, or the truth.
    `assigned` has what was assigned to a variable in it, where that is a comparison of the number.
    """

    node: Branch
    file: str
    numbers: frozenset[ast.AST]
    assigned: Mapping[str, ast.expr]


class _Code:
    """What files consist of: where names are used, and which functions and classes there are."""

    def __init__(self, files: tuple[str, ...]) -> None:
        self.uses: dict[str, list[_Place]] = {}
        self.scopes: dict[ast.AST, _Scope] = {}
        self.functions: dict[str, list[_Function]] = {}
        self.classes: dict[str, list[ast.ClassDef]] = {}
        self.bound: set[tuple[ast.AST, str]] = set()
        self._places: list[_Place] = []
        elsewhere: set[tuple[ast.AST, str]] = set()
        for file in dict.fromkeys(files):
            waiting: list[tuple[ast.AST, _Scope]] = [(places.tree_of(file) or ast.Pass(), ())]
            while waiting:
                node, scope = waiting.pop()
                self._read(node, scope, file)
                if scope and isinstance(node, ast.Global | ast.Nonlocal):
                    elsewhere.update((scope[-1], name) for name in node.names)
                inner = (*scope, node) if isinstance(node, _FUNCTIONS) else scope
                waiting += ((child, inner) for child in ast.iter_child_nodes(node))
        self.bound -= elsewhere

    def uses_of_target(self, name: str) -> Iterator[_Place]:
        """The places that assign to a variable."""
        for place in self.uses.get(name, ()):
            targets = place[0].targets if isinstance(place[0], ast.Assign) else []
            if any(_named(target) == name for target in targets):
                yield place

    def places_of(self, nodes: set[ast.AST]) -> list[_Place]:
        """The places that pieces of code are in."""
        parts_of = [(place, ast.walk(part)) for place in self._places for part in _heads(place[0])]
        return [place for place, parts in parts_of if any(part in nodes for part in parts)]

    def _read(self, node: ast.AST, scope: _Scope, file: str) -> None:
        self.scopes[node] = scope
        if isinstance(node, _PASS_ON):
            place = (node, scope, file)
            self._places.append(place)
            parts = [part for head in _heads(node) for part in ast.walk(head)]
            for name in {_named(part) for part in parts} - {""}:
                self.uses.setdefault(name, []).append(place)
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            self.functions.setdefault(node.name, []).append(node)
        elif isinstance(node, ast.ClassDef):
            self.classes.setdefault(node.name, []).append(node)
        elif isinstance(node, ast.Assign) and isinstance(node.value, ast.Lambda):
            for target in node.targets:
                self.functions.setdefault(_named(target), []).append(node.value)
        if scope and isinstance(node, ast.arg):
            self.bound.add((scope[-1], node.arg))
        elif scope and isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            self.bound.add((scope[-1], node.id))


_code = cache(_Code)


class Flow:
    """What a number has reached: names, each with the number itself or with a mask made of it."""

    def __init__(self, files: tuple[str, ...], sources: set[ast.AST], read: str) -> None:
        """The number is what the code `sources` gives; truths are a mask, and are counted."""
        self._code = _code(files)
        kinds: list[_Kind] = [(False, None), (True, None)]
        self._sources, self._given_by_them = sources, set(kinds if read == "truths" else kinds[:1])
        self._adds = (ast.AugAssign,) if read in places.BULK else ()
        self._reached: dict[_Name, set[_Kind]] = {}

    def ends_in_size(self, within: ast.AST | None = None) -> bool:
        """Whether the number is rounded, or selects, anywhere that it reaches.

        With `within`, only in the outermost function around that code.
        """
        return any(
            self._makes_size(node, scope) and not places.is_only_logged(file, _line(node))
            for node, scope, file in self._places(within)
        )

    def branches(self, within: ast.AST | None = None) -> tuple[Reached, ...]:
        """The branches that the number decides, in the order in which it reaches them."""
        reached: dict[ast.AST, Reached] = {}
        for node, scope, file in self._places(within):
            if _branches(node) and self._kinds(node.test, scope):
                parts = list(ast.walk(node.test))
                names = [part for part in parts if isinstance(part, ast.Name)]
                masks = {n.id: self._assigned(n, scope) for n in names if self._is_mask(n, scope)}
                assigned = {name: value for name, value in masks.items() if value is not None}
                parts += [part for value in assigned.values() for part in ast.walk(value)]
                numbers = frozenset(part for part in parts if self._is_number(part, scope))
                reached[node] = Reached(node, file, numbers, assigned)
        return tuple(reached.values())

    def _is_number(self, node: ast.AST, scope: _Scope) -> bool:
        if node in self._sources:
            return True
        return isinstance(node, ast.Name | ast.Attribute) and bool(self._kinds(node, scope))

    def _assigned(self, name: ast.Name, scope: _Scope) -> ast.expr | None:
        """The comparison of the number that was assigned to a variable."""
        for node, _, _ in self._code.uses_of_target(name.id):
            if isinstance(node, ast.Assign) and self._kinds(node.value, scope):
                return node.value
        return None

    def _places(self, within: ast.AST | None) -> Iterator[_Place]:
        """The pieces of code that the number reaches; some come more than once."""
        inside = None if within is None else self._code.scopes.get(within, ())[:1]
        waiting = self._code.places_of(self._sources)
        while waiting:
            new: set[tuple[_Name, _Kind]] = set()
            for node, scope, file in waiting:
                if inside and scope[:1] != inside:
                    continue
                yield node, scope, file
                new.update(self._given(node, scope))
            names = set()
            for name, kind in new:
                if kind not in self._reached.setdefault(name, set()):
                    self._reached[name].add(kind)
                    names.add(name[1])
            waiting = [place for name in names for place in self._code.uses.get(name, ())]

    def _makes_size(self, node: ast.AST, scope: _Scope) -> bool:
        """Whether code makes an integer of the number, or selects or counts by a mask of it.

        `round(x, 4)` makes none.
        """
        if isinstance(node, ast.If):
            return self._is_mask(node.test, scope) and any(
                name_of_call(part) in _KEEPS or isinstance(part, self._adds)
                for statement in (*node.body, *node.orelse)
                for part in ast.walk(statement)
            )
        if isinstance(node, ast.Subscript):
            return isinstance(node.ctx, ast.Load) and self._is_mask(node.slice, scope)
        if isinstance(node, ast.comprehension):
            return any(self._is_mask(test, scope) for test in node.ifs)
        if not isinstance(node, ast.Call):
            return False
        name = name_of_call(node)
        if name in _SELECTS and any(self._is_mask(part, scope) for part in (node.func, *node.args)):
            return True
        keeps_digits = name == "round" and len(node.args) > 1
        rounds = name in _ROUNDS or any(_named(argument) in _ROUNDS for argument in node.args)
        if not rounds or keeps_digits:
            return False
        return any(not is_mask for is_mask, _ in self._kinds(node, scope))

    def _is_mask(self, node: ast.AST, scope: _Scope) -> bool:
        return any(is_mask for is_mask, _ in self._kinds(node, scope))

    def _given(self, node: ast.AST, scope: _Scope) -> Iterator[tuple[_Name, _Kind]]:
        """The names that a piece of code gives the number, or a mask, to."""
        for target, owner, value in self._handed(node, scope):
            names = [(owner, target)] if isinstance(target, str) else self._names(target, scope)
            kinds = self._kinds(value, scope)
            whole = isinstance(target, str | ast.Name | ast.Attribute)
            whole = whole and isinstance(node, _KEEP_PLACES) and name_of_call(node) not in _KEEPS
            kinds = kinds if whole else _anywhere(kinds)
            yield from ((name, kind) for name in names for kind in kinds)

    def _handed(
        self, node: ast.AST, scope: _Scope
    ) -> Iterator[tuple[ast.AST | str, ast.AST | None, ast.AST]]:
        """The targets of a piece of code, or names and the functions they are in; what they get."""
        if isinstance(node, ast.Call):
            name = name_of_call(node)
            if name in _KEEPS:
                given = (*node.args, *(each.value for each in node.keywords))
                yield from ((node.func, None, value) for value in given)
            for function in self._code.functions.get(name, ()):
                yield from ((to, function, value) for to, value in _arguments(function, node))
            for made in self._code.classes.get(name, ()):
                yield from _of_new(made, node)
        elif isinstance(node, ast.For | ast.comprehension):
            yield node.target, None, node.iter
        elif isinstance(node, _GIVES_BACK) and node.value is not None and scope:
            yield getattr(scope[-1], "name", ""), None, node.value
        elif isinstance(node, _ASSIGNS) and node.value is not None:
            targets = node.targets if isinstance(node, ast.Assign) else [node.target]
            yield from ((target, None, node.value) for target in targets)

    def _kinds(self, node: ast.AST, scope: _Scope) -> set[_Kind]:
        """What is in the value of an expression: the number, a mask of it."""
        if node in self._sources:
            return self._given_by_them
        name = name_of_call(node)
        if name in _FORGETS or (isinstance(node, ast.Attribute) and node.attr in _SHAPES):
            return set()
        named: set[_Name] = {(None, name)} if name else set()
        if isinstance(node, ast.Name | ast.Attribute):
            named.update(self._names(node, scope))
        kinds = {kind for each in named for kind in self._reached.get(each, ())}
        for number, child in enumerate(ast.iter_child_nodes(node)):
            if isinstance(node, ast.IfExp) and child is node.test:
                continue  # the value is one of the others
            kinds |= self._of_child(node, number, self._kinds(child, scope))
        return {(True, None)} if kinds and isinstance(node, ast.Compare) else kinds

    def _of_child(self, node: ast.AST, number: int, kinds: set[_Kind]) -> set[_Kind]:
        """What is in the value of an expression that is in the value of its child `number`."""
        if isinstance(node, ast.List | ast.Tuple):
            starred = any(isinstance(each, ast.Starred) for each in node.elts)
            return {(is_mask, None if starred else number) for is_mask, _ in kinds}
        if isinstance(node, ast.Subscript):
            index = node.slice.value if isinstance(node.slice, ast.Constant) else None
            if number == 0 and isinstance(index, int) and index >= 0:
                kinds = {kind for kind in kinds if kind[1] in (None, index)}
            return _anywhere(kinds)
        return kinds if isinstance(node, _KEEP_PLACES) else _anywhere(kinds)

    def _names(self, target: ast.AST, scope: _Scope) -> Iterator[_Name]:
        """The names in a target: variables, attributes, and what an element is an element of."""
        if isinstance(target, ast.Name):
            bound = self._code.bound
            owners = (each for each in reversed(scope) if (each, target.id) in bound)
            yield next(owners, None), target.id
        elif isinstance(target, ast.Attribute) and target.attr not in _KEEPS:
            yield None, target.attr
        elif isinstance(target, ast.Attribute | ast.Subscript | ast.Starred):
            yield from self._names(target.value, scope)
        elif isinstance(target, ast.Tuple | ast.List):
            for element in target.elts:
                yield from self._names(element, scope)


def _anywhere(kinds: set[_Kind]) -> set[_Kind]:
    return {(is_mask, None) for is_mask, _ in kinds}


def _arguments(function: _Function, call: ast.Call) -> Iterator[tuple[str, ast.expr]]:
    """The arguments of a function and what a call gives them."""
    args = function.args
    names = [each.arg for each in (*args.posonlyargs, *args.args)]
    names = names[1:] if names[:1] in (["self"], ["cls"]) else names
    rest = [each.arg for each in (args.vararg, args.kwarg) if each is not None]
    for place, value in enumerate(call.args):
        if isinstance(value, ast.Starred):
            yield from ((name, value.value) for name in (*names[place:], *rest))
        elif place < len(names):
            yield names[place], value
        elif args.vararg is not None:
            yield args.vararg.arg, value
    accepted = {*names, *(each.arg for each in args.kwonlyargs)}
    for keyword in call.keywords:
        if keyword.arg in accepted:
            yield str(keyword.arg), keyword.value
        elif keyword.arg is None:
            yield from ((name, keyword.value) for name in (*accepted, *rest))
        elif args.kwarg is not None:
            yield args.kwarg.arg, keyword.value


def _of_new(made: ast.ClassDef, call: ast.Call) -> Iterator[tuple[str, ast.AST | None, ast.AST]]:
    """What a call of a class gives: arguments of its `__init__`, or else its fields."""
    starts = [each for each in made.body if getattr(each, "name", "") == "__init__"]
    for start in starts:
        if isinstance(start, ast.FunctionDef):
            yield from ((name, start, value) for name, value in _arguments(start, call))
    if not starts:
        fields = [_named(each.target) for each in made.body if isinstance(each, ast.AnnAssign)]
        yield from ((name, None, value) for name, value in zip(fields, call.args, strict=False))
        yield from ((each.arg, None, each.value) for each in call.keywords if each.arg)


def _named(node: ast.AST) -> str:
    return str(getattr(node, "attr", None) or getattr(node, "id", ""))


def _line(node: ast.AST) -> int:
    return int(getattr(node.iter if isinstance(node, ast.comprehension) else node, "lineno", 0))


def _heads(node: ast.AST) -> list[ast.AST]:
    """A piece of code without the body of a loop or a branch."""
    if isinstance(node, ast.For):
        return [node.target, node.iter]
    if isinstance(node, BRANCHES):
        return [node.test]
    return [node]
