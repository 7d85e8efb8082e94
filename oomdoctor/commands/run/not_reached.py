"""What a training that was stopped would have run next: calls that evaluate, generate or save.

They are read from the user's code around the line where it stopped. A name says what a call does,
as in a traceback, and so does a decorator that switches gradients off.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from typing import Any

from oomdoctor.analysis.frames import meaning
from oomdoctor.analysis.own_code import is_own
from oomdoctor.commands.run.places import shown_file, tree_of
from oomdoctor.records.report.diagnosis import Frame
from oomdoctor.records.report.run import Place

_PHASES = ("eval", "generate", "save")
_MOST = 4
_SWITCHES = frozenset({"eval", "state_dict"})  # of a mode, and what a save takes
_WITHOUT_GRADIENTS = ("no_grad", "inference_mode")
_LOOPS = (ast.For, ast.While, ast.AsyncFor)
_FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef)


def not_reached(record: dict[str, Any]) -> tuple[Place, ...]:
    """The calls that come after the stop of a process, the nearest first; none if it ran on."""
    found: dict[str, Place] = {}
    for frame in record.get("stopped_in", ()):
        file, line = frame["filename"], int(frame["line"] or 0)
        if not is_own(file, record["library_folders"], record.get("script")):
            continue
        tree = tree_of(file)
        if tree is None:
            continue
        evaluating = set(_without_gradients(tree))
        for call in _calls_after(tree, line, again=not record.get("without_gradients")):
            name = _name(call.func)
            if name in _SWITCHES:
                continue
            if name in evaluating or meaning(Frame(file, call.lineno, name, None)) in _PHASES:
                found.setdefault(name, Place(shown_file(file), call.lineno, name))
    return tuple(found.values())[:_MOST]


def _calls_after(tree: ast.Module, line: int, *, again: bool) -> Iterator[ast.Call]:
    """The calls that come after a line in its function; `again`, also those before it in its loops.

    Those may have run, but not if nothing of their kind was seen.
    """
    inside: ast.AST = tree
    for node in ast.walk(tree):
        if isinstance(node, _FUNCTIONS) and _holds(node, line) and _holds(inside, node.lineno):
            inside = node
    loops = [node for node in _own_nodes(inside) if isinstance(node, _LOOPS) and _holds(node, line)]
    first = min((loop.lineno for loop in loops), default=line + 1) if again else line + 1
    calls = [node for node in _own_nodes(inside) if isinstance(node, ast.Call)]
    yield from sorted(
        (call for call in calls if call.lineno >= first and call.lineno != line),
        key=lambda call: (call.lineno < line, call.lineno),
    )


def _own_nodes(inside: ast.AST) -> Iterator[ast.AST]:
    """The nodes of a function or module, without those of functions and classes in it."""
    for node in ast.iter_child_nodes(inside):
        if not isinstance(node, (*_FUNCTIONS, ast.ClassDef, ast.Lambda)):
            yield node
            yield from _own_nodes(node)


def _holds(node: ast.AST, line: int) -> bool:
    first, last = getattr(node, "lineno", 0), getattr(node, "end_lineno", None)
    return first <= line <= (last or line)


def _without_gradients(tree: ast.Module) -> Iterator[str]:
    """The functions whose decorator switches gradients off."""
    for node in ast.walk(tree):
        if isinstance(node, _FUNCTIONS):
            text = " ".join(map(ast.unparse, node.decorator_list))
            if any(word in text for word in _WITHOUT_GRADIENTS):
                yield node.name


def _name(node: ast.AST) -> str:
    return str(getattr(node, "attr", None) or getattr(node, "id", ""))
