"""Past the limit of an emulated GPU: a run goes on where a real one runs out of memory.

The device grants a request that fails for good, so that the run shows what its training needs. A
script that handles the error, such as one that halves its batch and tries again, must get it
instead: it would go on in another way. So before the first such request the device asks here, from
the thread that waits for it, through a pipe. A thread of ours looks at the frames of that thread,
and of the one that waits for a backward pass.

A limit that the script sets itself (`torch.cuda.set_per_process_memory_fraction`) is kept.
"""

from __future__ import annotations

import ast
import builtins
import ctypes
import gc
import inspect
import linecache
import os
import re
import struct
import sys
import textwrap
import threading
from collections.abc import Iterator, Sequence
from contextlib import suppress
from types import CodeType, FrameType
from typing import Any

from oomdoctor.monitor.inside.process_facts import emulated_device, named_in

_QUESTION, _ANSWER = struct.Struct("=3Q"), struct.Struct("=2Q")
# What a handler says that is for this error: a type, a text, or a function such as `is_oom_error`.
_MEMORY = re.compile(r"(?i)out[ _]?of[ _]?memory|(?<![a-z])oom(?![a-z])|reduce_batch_size")
_WITH = re.compile(r"\bwith\b")
_DOTTED = re.compile(r"[\w.]+")
_ENDS = frozenset({"exit", "_exit", "quit", "abort"})
_NAMES = ("at_us", "size", "free_bytes", "total_bytes", "address", "device")
_held: list[Any] = []  # the callback must live as long as the device
_Block = Sequence[ast.stmt]


class _First(ctypes.Structure):
    """emu_first of native/emu.h."""

    _fields_ = tuple((name, ctypes.c_uint64) for name in _NAMES)


def begin() -> None:
    """Let the emulated device go past the limit from now on; nothing on a real one."""
    device = emulated_device()
    if device is None:
        return
    asked, question = os.pipe()
    answer, told = os.pipe()
    threading.Thread(target=_answer, args=(asked, told), daemon=True).start()
    here = ctypes.CFUNCTYPE(ctypes.c_int)(lambda: int(_sees(threading.get_ident())))
    _held.append(here)
    device.emu_past_begin(question, answer, here)


def first() -> dict[str, int] | None:
    """The first request that a real card would not have met; None if there was none.

    `at_us` is when (since 1970), `address` where it lies, `free_bytes` what was free.
    """
    device = emulated_device()
    request = _First()
    if device is None or not device.emu_past_first(ctypes.byref(request)):
        return None
    return {name: int(getattr(request, name)) for name in _NAMES}


def _answer(asked: int, told: int) -> None:
    while question := os.read(asked, _QUESTION.size):
        number, thread, _ = _QUESTION.unpack(question)
        os.write(told, _ANSWER.pack(number, _sees(thread)))


def _sees(thread: int) -> bool:
    """Whether the error of a thread would be handled, by it or by the one that waits for it.

    No tensor may be freed here: that waits for the allocator, which waits for us. And none may be
    kept: the frames that are found have our own among them, which would keep all of them.
    """
    ours: Any = sys.modules.get("oomdoctor.monitor.guarding.block")
    if ours is not None and ours.Guard.skipping:
        return True
    collects = gc.isenabled()
    gc.disable()
    frames = sys._current_frames()
    try:
        waiting = dict.fromkeys((thread, threading.main_thread().ident or 0))
        return any(handles(frames.get(waiter)) for waiter in waiting)
    finally:
        frames.clear()
        if collects:
            gc.enable()


def handles(frame: FrameType | None) -> bool:
    """Whether this frame, or one that waits for it, would handle an out-of-memory error."""
    while frame is not None:
        with suppress(Exception):  # what cannot be read handles nothing
            if any(_is_handled(guard, frame) for guard in _guards(frame.f_code)):
                return True
        frame = frame.f_back
    return False


def _guards(code: CodeType) -> Iterator[ast.stmt]:
    """The statements of a function that may handle errors of others, with lines of the file."""
    lines = linecache.getlines(code.co_filename)
    begin = 0
    if code.co_name != "<module>":
        begin = code.co_firstlineno - 1
        lines = inspect.getblock(lines[begin:])
    text = "".join(lines)
    if not _MEMORY.search(text) and not _WITH.search(text):
        return
    tree = ast.parse(textwrap.dedent(text))
    ast.increment_lineno(tree, begin)
    for node in ast.walk(tree):
        if isinstance(node, (ast.Try, ast.TryStar, ast.With, ast.AsyncWith)):
            yield node


def _is_handled(guard: Any, frame: FrameType) -> bool:
    if not guard.body[0].lineno <= frame.f_lineno <= (guard.body[-1].end_lineno or 0):
        return False
    if isinstance(guard, (ast.With, ast.AsyncWith)):
        return any(_suppresses(item.context_expr, frame) for item in guard.items)
    return _has_handler(guard)


def _has_handler(guard: Any) -> bool:
    """Whether a `try` has a handler for the error that goes on."""
    for handler in guard.handlers:
        if _catches(handler.type):
            return bool(_MEMORY.search(ast.unparse(handler))) and _outcome(handler.body) != "leaves"
    return False


def _suppresses(context: ast.expr, frame: FrameType) -> bool:
    """Whether a context manager is one for the error: by what it is given, or by its own code."""
    if _MEMORY.search(ast.unparse(context)):
        return True
    name = ast.unparse(context.func if isinstance(context, ast.Call) else context)
    if not _DOTTED.fullmatch(name):
        return False
    manager = named_in(frame, name)
    generator = getattr(manager, "__wrapped__", None)  # what contextlib.contextmanager keeps
    kind = manager if isinstance(manager, type) else type(manager)
    code = generator or vars(kind).get("__exit__") or vars(kind).get("__aexit__")
    if code is None:
        return False
    text = textwrap.dedent(inspect.getsource(code))
    if not _MEMORY.search(text):
        return False
    nodes = list(ast.walk(ast.parse(text)))
    if generator is not None:
        around = (node for node in nodes if isinstance(node, (ast.Try, ast.TryStar)))
        return any(map(_has_handler, filter(_yields, around)))
    given = [node.value for node in nodes if isinstance(node, ast.Return) and node.value]
    return any(not isinstance(value, ast.Constant) or value.value for value in given)


def _yields(guard: Any) -> bool:
    return any(isinstance(part, ast.Yield) for each in guard.body for part in ast.walk(each))


def _catches(expression: ast.expr | None) -> bool:
    """Whether a handler of this type is for an error of torch's allocator, a RuntimeError."""
    if isinstance(expression, ast.Tuple):
        return any(map(_catches, expression.elts))
    if expression is None:
        return True
    error = getattr(builtins, ast.unparse(expression), None)
    return error is None or (isinstance(error, type) and issubclass(RuntimeError, error))


def _outcome(body: _Block) -> str:
    """How a handler ends for this error: it "leaves" with an error, or it goes on, "handled" or
    "falls" behind its last line."""
    for statement in body:
        ends = "falls"
        if isinstance(statement, ast.Raise) or _is_exit(statement):
            ends = "leaves"
        elif isinstance(statement, (ast.Return, ast.Continue, ast.Break)):
            ends = "handled"
        elif isinstance(statement, ast.If):
            ends = _of_branches(statement)
        elif isinstance(statement, (ast.With, ast.Try)):
            ends = _outcome(statement.body)
        if ends != "falls":
            return ends
    return "falls"


def _of_branches(branch: ast.If) -> str:
    test = ast.unparse(branch.test)
    if _MEMORY.search(test):
        is_not = re.search(r"\bnot\b", test)
        return _outcome(branch.orelse if is_not else branch.body)
    ends = {_outcome(branch.body), _outcome(branch.orelse)}
    return ends.pop() if len(ends) == 1 else "falls" if "falls" in ends else "handled"


def _is_exit(statement: ast.stmt) -> bool:
    if not isinstance(statement, ast.Expr) or not isinstance(statement.value, ast.Call):
        return False
    return ast.unparse(statement.value.func).rpartition(".")[2] in _ENDS
