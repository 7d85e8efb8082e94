"""Runs user-like scripts in this process with an out-of-memory error at a chosen moment.

What happens at an operator is known from the run itself (autograd's own state, optimizer hooks,
the line of the script), never from the text that is judged later. The frames of this file are
taken out of the traceback: a real allocator leaves none.
"""

from __future__ import annotations

import sys
import traceback
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch.optim.optimizer import (
    register_optimizer_step_post_hook,
    register_optimizer_step_pre_hook,
)
from torch.utils._python_dispatch import TorchDispatchMode

MESSAGE = (
    "CUDA out of memory. Tried to allocate 1.96 GiB. GPU 0 has a total capacity of 79.25 GiB of "
    "which 1.06 GiB is free. Including non-PyTorch memory, this process has 78.18 GiB memory in "
    "use. Of the allocated memory 76.40 GiB is allocated by PyTorch, and 712.12 MiB is reserved by "
    "PyTorch but unallocated. If reserved but unallocated memory is large try setting "
    "PYTORCH_ALLOC_CONF=expandable_segments:True to avoid fragmentation.  See documentation for "
    "Memory Management  (https://docs.pytorch.org/docs/stable/notes/cuda.html)"
)
_LOSS = ("_log_softmax", "nll_loss_forward", "nll_loss2d_forward", "mse_loss")
_NORMS = ("_foreach_norm", "linalg_vector_norm")


@dataclass(frozen=True)
class Failure:
    """A traceback as printed, and the line of the script that stood in it, innermost."""

    text: str
    line: int | None
    source: str


class Injector(TorchDispatchMode):
    """Raises at the allocating operator number `count` (from 1) of a moment, and counts them all.

    A moment is what a marker `#: NAME` on the running line of the script says; on lines without
    one it is told by what torch does: backward, optimizer, loss, clip, eval or forward.
    """

    def __init__(self, script: Path, moment: str | None = None, count: int = 1) -> None:
        super().__init__()
        self.script, self.wanted = script, (moment, count)
        self.lines = script.read_text().splitlines()
        self.seen: Counter[str] = Counter()
        self.line: int | None = None
        self.stepping = False

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        return False  # torch would wrap the method, and its frames would end each traceback

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        returns = func._schema.returns
        if not returns or any(value.alias_info is not None for value in returns):
            return func(*args, **(kwargs or {}))  # a view or in place: allocates nothing
        line, marker, root = self._place()
        moment = self._moment(func.overloadpacket.__name__, marker, root)
        self.seen[moment] += 1
        if (moment, self.seen[moment]) == self.wanted:
            self.line = line
            self.wanted = (None, 0)
            raise torch.OutOfMemoryError(MESSAGE)
        return func(*args, **(kwargs or {}))

    def _moment(self, name: str, marker: str | None, root: torch.nn.Module | None) -> str:
        if torch._C._current_graph_task_id() != -1:
            return "backward"
        if self.stepping:
            return "optimizer"
        if marker:
            return marker
        if name in _NORMS:
            return "clip"
        if root is not None and not root.training:
            return "eval"
        if name in _LOSS:
            return "loss"
        return "forward" if root is not None else "other"

    def _place(self) -> tuple[int | None, str | None, torch.nn.Module | None]:
        """The script's innermost line, a marker on the way, and the outermost module at work."""
        frame, line, root = sys._getframe(2), None, None
        while frame is not None:
            code = frame.f_code
            if code.co_name == "_call_impl":
                root = frame.f_locals["self"]
            if code.co_filename == str(self.script):
                line = line or frame.f_lineno
                _, found, marker = self.lines[frame.f_lineno - 1].partition("#: ")
                if found:
                    return line, marker.strip(), root
            frame = frame.f_back
        return line, None, root


def run(script: Path, moment: str | None = None, count: int = 1) -> tuple[Failure | None, Counter]:
    """Run a script; its failure if the injected error came out, and how often each moment was."""
    injector = Injector(script, moment, count)

    def begin(*_: Any) -> None:
        injector.stepping = True

    def end(*_: Any) -> None:
        injector.stepping = False

    hooks = [register_optimizer_step_pre_hook(begin), register_optimizer_step_post_hook(end)]
    code = compile(script.read_text(), str(script), "exec")
    try:
        with injector:
            exec(code, {"__name__": "__main__", "__file__": str(script)})
    except torch.OutOfMemoryError as error:
        return Failure(printed(error, __file__), injector.line, str(script)), injector.seen
    finally:
        for hook in hooks:
            hook.remove()
    return None, injector.seen


def printed(error: BaseException, *hidden: str) -> str:
    """The traceback as the interpreter prints it, without the frames of the hidden files."""
    told = traceback.TracebackException.from_exception(error)
    told.stack = traceback.StackSummary.from_list(
        [frame for frame in told.stack if frame.filename not in hidden]
    )
    told.__context__ = told.__cause__ = None
    return "".join(told.format())
