"""The line of a peak, and its phase, from the Python stack that torch recorded.

A script that records its own history may ask for C++ frames too; they are passed over.

Which reads of unknown values may have decided something, by the source of their line. What a
training that was stopped would have run next: calls that evaluate, generate or save. A name says
what a call does, as in a traceback, and so does a decorator that switches gradients off.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path, PurePath
from typing import Any, TypeGuard

from oomdoctor.analysis.frames import meaning, phase_of
from oomdoctor.analysis.own_code import is_ours, is_own
from oomdoctor.package_data import data_of, in_tuples
from oomdoctor.records.report.diagnosis import Frame, ReadPhase
from oomdoctor.records.report.run import Place

Record = dict[str, Any]
"""What a process noted, as it is in its JSON, or a part of it."""
_HOOKED: tuple[ReadPhase, ...] = ("load", "forward", "loss", "backward", "optimizer", "eval")
# A function of a library that says more than the hooks do: a part of its file, its name, the phase.
_FUNCTIONS: tuple[tuple[str, str, ReadPhase], ...] = in_tuples(data_of("phases.toml")["functions"])
_SHOWN_FRAMES = 40
_ALL_FRAMES = 60  # what the record keeps of a stack
# Calls that make a number of a tensor. What only keeps or prints that number decides nothing.
BULK = ("numbers", "truths", "integers")
"""Kinds of reads that give more than a few values."""
NUMBERS = frozenset({"item", "float", "tolist", "cpu", "numpy", "detach", "round"})
_MOVES = (
    "/torch/storage.py", "/torch/serialization.py", "/safetensors/torch.py",
    "/torch/nn/modules/module.py",
)  # fmt: skip
FINITE = frozenset({"isnan", "isinf", "isfinite"})
_FOUND_INF = "found_inf"  # what a gradient scaler calls it
"""An unknown value is finite, as it would be in a training that goes well."""
# Calls that a training which was stopped would have come to, by what a call of that name does.
_LATER = ("eval", "generate", "save")
_MOST_LATER = 4
_SWITCHES = frozenset({"eval", "state_dict"})  # of a mode, and what a save takes
_WITHOUT_GRADIENTS = ("no_grad", "inference_mode")
_OPTIMIZER = re.compile(r"(?:torch\.)?optim\.[A-Z]\w+")
_MAKE_WEIGHTS = frozenset({"Parameter", "add_param_group", "requires_grad_"})
_UNFREEZES = "requires_grad = True"  # how an assignment is called
_OF_MODELS = frozenset({"train", "eval", "parameters", "named_parameters", "state_dict", "cuda"})
_LOOPS = (ast.For, ast.While, ast.AsyncFor)
_DEFINITIONS = (ast.FunctionDef, ast.AsyncFunctionDef)
# Code of the processes that is in no file, such as cells: how it is shown, and its text. A name has
# the number of the process, or a hash of the code.
_code: dict[str, tuple[str, str]] = {}
_TESTS = (ast.If, ast.While, ast.Assert, ast.IfExp, ast.comprehension, ast.Match, ast.Compare)


def take_code(record: Record) -> None:
    """Take the code that a process kept because it is in no file."""
    _code.update({file: (shown, text) for file, (shown, text) in record.get("code", {}).items()})


def user_line(peak: Record, libraries: list[str], script: str | None = None) -> Place | None:
    """The innermost line of the user's own code; in the backward pass, what called it.

    The script that was started is the user's, also if a package installed it.
    """
    for frames in (peak["frames"], peak["backward_frames"] if _in_backward(peak) else []):
        for frame in frames:
            if is_own(frame["filename"], libraries, script):
                return _place(frame)
    return None


def library_line(peak: Record, libraries: list[str]) -> Place | None:
    """The innermost line of all, if it is a library's."""
    python = [frame for frame in peak["frames"] if frame["filename"].endswith(".py")]
    frames = [frame for frame in python if not is_ours(frame["filename"])]
    if not frames or is_own(frames[0]["filename"], libraries):
        return None
    return _place(frames[0])


def phase_of_peak(peak: Record) -> ReadPhase:
    """The phase by the stack, where a function says it, else by the hooks.

    Without hooks, the whole stack says it; it also says what of a forward pass is the loss.
    """
    for frame in peak["frames"][:_SHOWN_FRAMES]:
        for file, function, phase in _FUNCTIONS:
            if file in frame["filename"] and function in ("", frame["name"]):
                return phase
    if _in_backward(peak):
        return "backward"
    hooked = next((phase for phase in _HOOKED if phase == peak["phase"]), None)
    if hooked not in (None, "forward"):
        return hooked
    told = _by_stack(peak["frames"])
    return told if hooked is None or told == "loss" else hooked


def _by_stack(frames: list[Record]) -> ReadPhase:
    outermost_first = tuple(
        Frame(frame["filename"], frame["line"], frame["name"], None)
        for frame in reversed(frames)
        if frame["filename"].endswith(".py") and not is_ours(frame["filename"])
    )
    return phase_of(outermost_first)[0]


def _in_backward(peak: Record) -> bool:
    # The thread of the backward pass has no Python stack, except where it computes again or runs
    # a function that a library wrote in Python: then neither the script is below, nor the start
    # of a thread of Python, such as one that generates next to a training.
    frames = peak["frames"]
    below = {frame["name"] for frame in frames} & {"<module>", "_bootstrap"}
    apart = len(frames) < _ALL_FRAMES and not below
    return peak["phase"] == "backward" or (peak["phase"] == "loss" and apart)


def shown_file(file: str) -> str:
    """A cell by its number, a file below the working directory by its relative path.

    The working directory is that of the command.
    """
    if file in _code:
        return _code[file][0]
    path, here = PurePath(file), Path.cwd()
    return str(path.relative_to(here)) if path.is_relative_to(here) else file


def _place(frame: Record) -> Place:
    return Place(shown_file(frame["filename"]), int(frame["line"] or 0), frame["name"])


def only_moves(file: str) -> bool:
    """Whether a file of a library copies tensors to the host to save them, or to move a model."""
    return file.replace("\\", "/").endswith(_MOVES)


def may_decide(file: str, line: int) -> bool:
    """Whether the code of a line does more with a number than keep it, print it or format it.

    What compares tensors before a number is read, `(a == b).sum().item()`, decides nothing.
    """
    innermost = code_at(file, line)
    if innermost is None:
        return True
    nodes = list(parts_of(innermost))
    calls = {name_of_call(node) for node in nodes}
    if calls & FINITE or _FOUND_INF in ast.unparse(innermost):
        return False
    made = [node for node in nodes if name_of_call(node) in NUMBERS]
    before = {part for call in made for part in ast.walk(call) if isinstance(part, ast.Compare)}
    tests = [node for node in nodes if isinstance(node, _TESTS) and node not in before]
    if not all(map(_asks_for_a_kind, tests)):
        return True
    return not any(_makes_a_number(node) for node in nodes)


def _asks_for_a_kind(test: ast.AST) -> bool:
    """Whether a test is for a type or for None, and not about a number."""
    if isinstance(test, ast.IfExp):
        return name_of_call(test.test) == "isinstance" or _asks_for_a_kind(test.test)
    operators = test.ops if isinstance(test, ast.Compare) else [None]
    return all(isinstance(operator, ast.Is | ast.IsNot) for operator in operators)


def is_only_logged(file: str, line: int) -> bool:
    """Whether the code of a line adds a number up, prints it or formats it."""
    code = code_at(file, line)
    statements = code.body if isinstance(code, ast.Module) else [code] if code else []
    return bool(statements) and all(map(_only_logs, statements))


def _only_logs(statement: ast.AST) -> bool:
    nodes = tuple(parts_of(statement))
    if any(isinstance(node, ast.Subscript) for node in nodes):
        return False
    return any(isinstance(node, ast.AugAssign | ast.JoinedStr) or _prints(node) for node in nodes)


def parts_of(statement: ast.AST) -> Iterator[ast.AST]:
    """A statement and what is in it; of `if` and `while` without their bodies."""
    if isinstance(statement, ast.Module):
        for each in statement.body:
            yield from parts_of(each)
    elif isinstance(statement, ast.If | ast.While):
        yield statement
        yield from ast.walk(statement.test)
    else:
        yield from ast.walk(statement)


def _makes_a_number(node: ast.AST) -> bool:
    if isinstance(node, ast.JoinedStr):
        return True
    return name_of_call(node) in NUMBERS or _prints(node)


def _prints(node: ast.AST) -> bool:
    name = name_of_call(node).lower()
    return name == "print" or "log" in name


def name_of_call(node: ast.AST) -> str:
    """The name of what a call calls; empty for other code."""
    if not isinstance(node, ast.Call):
        return ""
    return str(getattr(node.func, "attr", None) or getattr(node.func, "id", ""))


def code_at(file: str, line: int) -> ast.AST | None:
    """The statement at a line, or a module of them if there are several; of compound ones only
    the head, which is not one of `with`, `try` and definitions."""
    tree = tree_of(file)
    statements = () if tree is None else ast.walk(tree)
    heads = [head for node in statements if (head := _head_at(node, line)) is not None]
    if len(heads) > 1:
        return ast.Module(heads, [])  # type: ignore[arg-type]
    return heads[0] if heads else None


def _head_at(node: ast.AST, line: int) -> ast.AST | None:
    """What a statement does at a line, without the statements in it; None if nothing."""
    head: ast.AST = node
    last: ast.expr | ast.stmt
    if isinstance(node, ast.For | ast.AsyncFor):
        head = last = node.iter
    elif isinstance(node, ast.If | ast.While):
        last = node.test
    elif isinstance(node, ast.Match):
        last = node.subject
    elif isinstance(node, ast.stmt) and not hasattr(node, "body"):
        last = node
    else:
        return None
    return head if node.lineno <= line <= (last.end_lineno or line) else None


@cache
def tree_of(file: str) -> ast.Module | None:
    """The code of a file, or that a process kept under its name; None if it cannot be read."""
    try:
        return ast.parse(_code[file][1] if file in _code else Path(file).read_bytes())
    except (OSError, SyntaxError, ValueError):
        return None


def not_reached(record: Record) -> tuple[Place, ...]:
    """The calls that come after the stop of a process, the nearest first; none if it ran on."""
    by_name: dict[str, Place] = {}
    for frame in record.get("stopped_in", ()):
        file, line = frame["filename"], int(frame["line"] or 0)
        if not is_own(file, record["library_folders"], record.get("script")):
            continue
        tree = tree_of(file)
        if tree is None:
            continue
        evaluating = set(_without_gradients(tree))
        named = set(_heads_without_gradients(tree)) | set(_more_weights(tree))
        for call in _calls_after(tree, line, again=not record.get("without_gradients")):
            name = _UNFREEZES if isinstance(call, ast.Assign) else name_of_call(call)
            if name in _SWITCHES:
                continue
            if (
                call in named
                or name in evaluating
                or meaning(Frame(file, call.lineno, name, None)) in _LATER
            ):
                by_name.setdefault(name, Place(shown_file(file), call.lineno, name))
    return tuple(by_name.values())[:_MOST_LATER]


def _calls_after(tree: ast.Module, line: int, *, again: bool) -> Iterator[ast.Call | ast.Assign]:
    """The calls that come after a line in its function; `again`, also those before it in its loops.

    Those may have run, but not if nothing of their kind was seen. An assignment that lets weights
    train counts as a call.
    """
    inside: ast.AST = tree
    for node in ast.walk(tree):
        if isinstance(node, _DEFINITIONS) and _holds(node, line) and _holds(inside, node.lineno):
            inside = node
    loops = [node for node in _own_nodes(inside) if isinstance(node, _LOOPS) and _holds(node, line)]
    first = min((loop.lineno for loop in loops), default=line + 1) if again else line + 1
    calls = [node for node in _own_nodes(inside) if isinstance(node, ast.Call) or _unfreezes(node)]
    yield from sorted(
        (call for call in calls if call.lineno >= first and call.lineno != line),
        key=lambda call: (call.lineno < line, call.lineno),
    )


def _own_nodes(inside: ast.AST) -> Iterator[ast.AST]:
    """The nodes of a function or module, without those of functions and classes in it."""
    for node in ast.iter_child_nodes(inside):
        if not isinstance(node, (*_DEFINITIONS, ast.ClassDef, ast.Lambda)):
            yield node
            yield from _own_nodes(node)


def _holds(node: ast.AST, line: int) -> bool:
    first, last = getattr(node, "lineno", 0), getattr(node, "end_lineno", None)
    return first <= line <= (last or line)


def _heads_without_gradients(tree: ast.Module) -> Iterator[ast.Call]:
    """What switches gradients off for a block of code that runs a model, by its name.

    A model is what the code calls and also trains, evaluates, moves or asks for its parameters.
    """
    calls = [node for node in ast.walk(tree) if isinstance(node, ast.Call)]
    attributes = [call.func for call in calls if isinstance(call.func, ast.Attribute)]
    models = {ast.unparse(each.value) for each in attributes if each.attr in _OF_MODELS}
    for node in ast.walk(tree):
        if isinstance(node, ast.With):
            inside = {
                ast.unparse(part.func)
                for statement in node.body
                for part in ast.walk(statement)
                if isinstance(part, ast.Call)
            }
            for item in node.items if inside & models else ():
                if name_of_call(item.context_expr) in _WITHOUT_GRADIENTS:
                    yield item.context_expr  # type: ignore[misc]


def _unfreezes(node: ast.AST) -> TypeGuard[ast.Assign]:
    """Whether it is `weight.requires_grad = True`, or another value than False."""
    if not isinstance(node, ast.Assign):
        return False
    names = [target.attr for target in node.targets if isinstance(target, ast.Attribute)]
    frozen = isinstance(node.value, ast.Constant) and not node.value.value
    return "requires_grad" in names and not frozen


def _more_weights(tree: ast.Module) -> Iterator[ast.Call | ast.Assign]:
    """Calls in a branch that make weights or an optimizer, or let more weights train, as in a later
    stage."""
    for branch in ast.walk(tree):
        if isinstance(branch, ast.If):
            for part in ast.walk(branch):
                if _unfreezes(part) or (
                    isinstance(part, ast.Call)
                    and (
                        name_of_call(part) in _MAKE_WEIGHTS
                        or _OPTIMIZER.fullmatch(ast.unparse(part.func))
                    )
                ):
                    yield part


def _without_gradients(tree: ast.Module) -> Iterator[str]:
    """The functions whose decorator switches gradients off."""
    for node in ast.walk(tree):
        if isinstance(node, _DEFINITIONS):
            text = " ".join(map(ast.unparse, node.decorator_list))
            if any(word in text for word in _WITHOUT_GRADIENTS):
                yield node.name
