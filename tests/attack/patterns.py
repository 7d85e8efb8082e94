"""Every regular expression of the package, with texts that are made to slow it down.

Expressions are collected, not listed: those that modules hold, at any depth of their tables; those
that are written in a call of `re`; and every text of a data file that is one.
"""

from __future__ import annotations

import ast
import importlib
import pkgutil
import re
import signal
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, fields, is_dataclass
from functools import cache
from itertools import pairwise, product
from pathlib import Path
from re import _parser as parser  # type: ignore[attr-defined]
from typing import Any

import oomdoctor
from oomdoctor.analysis import frames, own_code
from oomdoctor.package_data import data_of

PACKAGE = Path(oomdoctor.__file__).parent
ANCHORED = {"match", "fullmatch"}
MOST_UNITS = 60
# Their pieces are put together by the modules that hold them.
READ_ABOVE = {"frames.toml", "libraries.toml", "patterns.toml", "dialects.toml"}
LENGTH = 4000
"""Characters: readers look at no more of a line."""
TIMES = 8
"""How often as long as `usual_s` an expression may take."""
LIMIT_S = 2.0


@dataclass(frozen=True)
class Expression:
    """An expression, the methods that the package calls it with, and where it stands."""

    pattern: str
    flags: int
    methods: tuple[str, ...]
    place: str


@cache
def expressions() -> list[Expression]:
    """All expressions of the package, each once."""
    every: dict[tuple[str, int], Expression] = {}
    for one in (*_held(), *_written(), *_of_data()):
        before = every.get((one.pattern, one.flags))
        methods = tuple(sorted({*one.methods, *(before.methods if before else ())}))
        every[one.pattern, one.flags] = Expression(one.pattern, one.flags, methods, one.place)
    return sorted(every.values(), key=lambda one: one.place)


def _held() -> Iterator[Expression]:
    """The compiled expressions that modules hold."""
    for found in pkgutil.walk_packages(oomdoctor.__path__, "oomdoctor."):
        if found.name.endswith("__main__"):
            continue
        module = importlib.import_module(found.name)
        source = Path(module.__file__ or "").read_text("utf-8")
        for name, value in vars(module).items():
            named = value.items() if isinstance(value, Mapping) else [(None, value)]
            for key, part in named:
                place = name if key is None else f'{name}["{key}"]'
                if patterns := list(_patterns(part)):
                    methods = _methods(place, source)
                    at = f"{found.name}:{place}"
                    yield from (Expression(one.pattern, one.flags, methods, at) for one in patterns)


def _methods(place: str, source: str) -> tuple[str, ...]:
    """The methods that a module calls an expression with."""
    called = set(re.findall(rf"\b{re.escape(place)}\.(\w+)\(", source))
    return tuple(called & ANCHORED) if called and called <= ANCHORED else ("search",)


def _patterns(value: Any, depth: int = 0) -> Iterator[re.Pattern[str]]:
    if isinstance(value, re.Pattern):
        if isinstance(value.pattern, str):
            yield value
    elif depth < 6:
        inside: list[Any] = []
        if isinstance(value, dict):
            inside = [*value, *value.values()]
        elif isinstance(value, list | tuple | set | frozenset):
            inside = list(value)
        elif is_dataclass(value) and not isinstance(value, type):
            inside = [getattr(value, field.name, None) for field in fields(value)]
        for one in inside:
            yield from _patterns(one, depth + 1)


def _written() -> Iterator[Expression]:
    """Those that stand in a call such as `re.search("...", text)`."""
    for path in sorted(PACKAGE.rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text("utf-8"))):
            if not (isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute)):
                continue
            of_re = isinstance(node.func.value, ast.Name) and node.func.value.id == "re"
            if of_re and node.args and (text := _literal(node.args[0])) and _is_expression(text):
                method = node.func.attr if node.func.attr in ANCHORED else "search"
                if node.func.attr != "compile":
                    place = f"{path.relative_to(PACKAGE)}:{node.lineno}"
                    yield Expression(text, 0, (method,), place)


def _literal(node: ast.expr) -> str | None:
    """A text, or one with values in it, for which a word stands in."""
    if isinstance(node, ast.Constant) and isinstance(node.value, str):
        return node.value
    if isinstance(node, ast.JoinedStr):
        parts = [part.value if isinstance(part, ast.Constant) else "word" for part in node.values]
        return "".join(map(str, parts))
    return None


def _of_data() -> Iterator[Expression]:
    for row in frames.table().rows:
        for pattern, method in (
            (row.file, "search"),
            (row.function, "fullmatch"),
            (row.code, "search"),
        ):
            if pattern:
                yield Expression(pattern, 0, (method,), "frames.toml")
    packages = own_code._in_a_known_package()
    yield Expression(packages.pattern, packages.flags, ("search",), "libraries.toml")
    for path in sorted((PACKAGE / "data").rglob("*.toml")):
        name = str(path.relative_to(PACKAGE / "data"))
        if name in READ_ABOVE:
            continue
        for text in _texts(data_of(name)):
            if re.search(r"[*+{\\]", text) and _is_expression(text):
                yield Expression(text, 0, ("search",), name)


def _texts(value: Any) -> Iterator[str]:
    if isinstance(value, str):
        yield value
    elif isinstance(value, dict):
        for one in value.values():
            yield from _texts(one)
    elif isinstance(value, list):
        for one in value:
            yield from _texts(one)


def _is_expression(text: str) -> bool:
    try:
        re.compile(text)
    except (re.error, RecursionError):
        return False
    return True


def units(one: Expression) -> list[str]:
    """Short texts whose repetition may slow the expression: its own pieces, alone and in pairs."""
    pieces = list(dict.fromkeys(_pieces(parser.parse(one.pattern, one.flags & ~re.DEBUG))))
    singles = [piece for piece in pieces if piece.strip("\n")][:40]
    pairs = [a + b for a, b in pairwise(singles)]
    short = [piece for piece in singles if len(piece) <= 2][:6]
    mixed = [a + b for a, b in product(short, short) if a != b]
    whole = "".join(singles)
    return list(dict.fromkeys([*singles, *pairs, whole, *mixed]))[:MOST_UNITS]


def _pieces(tree: Any) -> Iterator[str]:
    """The literal runs of a parsed expression, and a letter or two of each class."""
    run = ""
    for operation, argument in tree:
        name = str(operation)
        if name == "LITERAL":
            run += chr(argument)
            continue
        if run:
            yield run
            run = ""
        if name in ("MAX_REPEAT", "MIN_REPEAT", "POSSESSIVE_REPEAT"):
            yield from _pieces(argument[2])
        elif name == "SUBPATTERN":
            yield from _pieces(argument[3])
        elif name == "BRANCH":
            for branch in argument[1]:
                yield from _pieces(branch)
        elif name in ("ASSERT", "ASSERT_NOT"):
            yield from _pieces(argument[1])
        elif name == "ATOMIC_GROUP":
            yield from _pieces(argument)
        elif name == "IN":
            yield from _of_class(argument)
        elif name in ("ANY", "NOT_LITERAL"):
            yield "a"
    if run:
        yield run


def _of_class(items: Any) -> Iterator[str]:
    for operation, argument in items:
        name = str(operation)
        if name == "LITERAL":
            yield chr(argument)
        elif name == "RANGE":
            yield chr(argument[0])
        elif name == "CATEGORY":
            yield {"SPACE": " ", "DIGIT": "1", "WORD": "a"}.get(str(argument).split("_")[-1], "a")
        elif name == "NEGATE":
            yield "a"


@cache
def usual_s() -> float:
    """Seconds of a plain search on this machine that begins anew at each of `LENGTH` letters."""
    plain = re.compile(r"\w+x")
    return min(_time(plain, "search", "a", LENGTH) for _ in range(5))


def slow_unit(one: Expression) -> str | None:
    """A unit whose repetition to `LENGTH` characters takes far longer than usual, with the time."""
    compiled, most_s = re.compile(one.pattern, one.flags), TIMES * usual_s()
    for unit in filter(None, units(one)):
        for method in one.methods:
            if _time(compiled, method, unit, LENGTH) <= most_s:
                continue
            taken = min(_time(compiled, method, unit, LENGTH) for _ in range(3))
            if taken > most_s:
                return f"{unit!r}: {taken / usual_s():.1f} times as long as usual"
    return None


def _time(compiled: re.Pattern[str], method: str, unit: str, length: int) -> float:
    text = (unit * (length // len(unit) + 1))[:length] + "\x00"
    before = signal.signal(signal.SIGVTALRM, _too_long)
    signal.setitimer(signal.ITIMER_VIRTUAL, LIMIT_S)
    began = time.process_time()
    try:
        if method == "search":
            for _ in compiled.finditer(text):
                pass
        else:
            getattr(compiled, method)(text)
    except TimeoutError:
        return LIMIT_S
    finally:
        signal.setitimer(signal.ITIMER_VIRTUAL, 0)
        signal.signal(signal.SIGVTALRM, before)
    return time.process_time() - began


def _too_long(*_: object) -> None:
    raise TimeoutError
