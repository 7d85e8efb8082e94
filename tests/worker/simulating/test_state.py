"""What a simulation remembers belongs to an object with a lifetime, not to a module."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import oomdoctor.worker

PACKAGE = Path(oomdoctor.worker.__file__).parent
_MAKES_MUTABLE = ("dict", "list", "set", "defaultdict", "Counter", "deque")


def _modules() -> Iterator[tuple[str, ast.Module]]:
    for path in sorted(PACKAGE.rglob("*.py")):
        yield str(path.relative_to(PACKAGE)), ast.parse(path.read_text(encoding="utf-8"))


def _is_empty_or_an_object(value: ast.expr | None, classes: set[str]) -> bool:
    """Whether a module would fill this value later, or keeps state of its own class in it."""
    if isinstance(value, ast.Dict):
        return not value.keys
    if isinstance(value, ast.List):
        return not value.elts
    called = value.func if isinstance(value, ast.Call) else None
    return isinstance(called, ast.Name) and called.id in {*_MAKES_MUTABLE, *classes}


def test_no_function_assigns_to_a_name_of_its_module() -> None:
    found = [
        f"{module}: global {', '.join(node.names)}"
        for module, tree in _modules()
        for node in ast.walk(tree)
        if isinstance(node, ast.Global)
    ]
    assert not found


def test_no_module_keeps_what_it_fills_later() -> None:
    found: list[str] = []
    for module, tree in _modules():
        classes = {
            node.name
            for node in tree.body
            if isinstance(node, ast.ClassDef) and not _is_constant(node)
        }
        assigned = (node for node in tree.body if isinstance(node, ast.Assign | ast.AnnAssign))
        found += [
            f"{module}:{node.lineno}"
            for node in assigned
            if _is_empty_or_an_object(node.value, classes)
        ]
    assert not found


def _is_constant(node: ast.ClassDef) -> bool:
    """Whether its objects never change: a named tuple, an enumeration or a frozen dataclass."""
    bases = {base.id for base in node.bases if isinstance(base, ast.Name)}
    frozen = any("frozen=True" in ast.unparse(decorator) for decorator in node.decorator_list)
    return frozen or not bases.isdisjoint({"NamedTuple", "Enum", "Protocol"})
