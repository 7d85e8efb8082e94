"""The steps of a training without an optimizer: from one backward pass to the next.

A script may update its weights itself. Its step ends where the next backward pass begins, if the
gradients were dropped or changed since the last one: else they accumulate, and it is the same step.
While there is an optimizer of torch, or the user's code may be yet to make one, only that counts.
"""

from __future__ import annotations

import ast
import sys
import weakref
from collections.abc import Callable, Iterator
from contextlib import suppress
from functools import cache, wraps
from pathlib import Path
from typing import Any

from oomdoctor.monitor.inside import launches
from oomdoctor.monitor.inside.process_facts import own_files

_MOST_ACCUMULATED = 64  # passes after which it is a step if nobody saw the gradients change
_MOST_NODES = 10_000
_LATE = 64  # passes after which no optimizer is expected any more
_WAITS = 16  # steps in which each optimizer should have had its turn
_OPTIM = "torch.optim"
# All optimizers that were made, while they live.
_made: weakref.WeakSet[Any] = weakref.WeakSet()


def note_optimizers() -> None:
    """Keep note of every optimizer of torch that is made from now on."""
    from torch.optim import Optimizer

    make = Optimizer.__init__

    @wraps(make)
    def noted(self: Any, *args: Any, **kwargs: Any) -> None:
        make(self, *args, **kwargs)
        _made.add(self)

    Optimizer.__init__ = noted


def _still_waits(turns: dict[int, list[int]], step: int) -> bool:
    """Whether an optimizer has yet to step with its states, on weights that no other one updates.

    `turns` are the first two turns of each by its identity, as the steps before them. An optimizer
    with one turn is given as long for the next. One without a turn for long has none.
    """
    ends = {id(optimizer): _end_of_wait(turns.get(id(optimizer), [])) for optimizer in _made}
    done = {id(w) for optimizer in _made if not ends[id(optimizer)] for w in _weights(optimizer)}
    waiting = (optimizer for optimizer in _made if step < ends[id(optimizer)])
    return any(
        id(w) not in done for optimizer in waiting for w in _weights(optimizer) if w.requires_grad
    )


def _end_of_wait(turns: list[int]) -> int:
    """The step up to which an optimizer is waited for; 0 if it is not."""
    return (_WAITS, 2 * turns[0] + 2 if turns else 0, 0)[len(turns)]


def _weights(optimizer: Any) -> Iterator[Any]:
    for group in optimizer.param_groups:
        yield from group["params"]


class Passes:
    """Watches the backward passes of a process and calls `end_step` where a step has ended."""

    def __init__(self, end_step: Callable[[], None]) -> None:
        self._end_step = end_step
        self._running = False
        self._passes = 0  # since the last step
        self._all = 0
        self._leaf: Any = None  # weights that the last pass reached, and their gradient then
        self._gradient: tuple[Any, int] | None = None
        self._modules, self._makes = 0, False

    def begin(self) -> None:
        """Watch from now on."""
        import torch

        name = "_engine_run_backward"
        run = getattr(torch.autograd, name, None)
        if run is None:
            return

        @wraps(run)
        def watched(outputs: Any, *args: Any, **kwargs: Any) -> Any:
            if self._running:  # a checkpoint computes again within a pass
                return run(outputs, *args, **kwargs)
            if self._passes and self.take_steps() and self._has_ended():
                self._passes = 0
                self._end_step()
            leaf, self._running = _leaf_of(outputs), True
            launches.note_phase("backward")
            try:
                return run(outputs, *args, **kwargs)
            finally:
                self._running = False
                launches.note_phase(launches.AFTER_BACKWARD)
                self._passes += 1
                self._all += 1
                self._note(leaf)

        setattr(torch.autograd, name, watched)

    def is_open(self) -> bool:
        """Whether a pass has run that no step has counted."""
        return self._passes > 0 and self.take_steps()

    def take_steps(self) -> bool:
        """Whether backward passes are steps, because no optimizer takes any."""
        return not len(_made) and not self.awaits({}, 0)

    def awaits(self, turns: dict[int, list[int]], step: int) -> bool:
        """Whether an optimizer is yet to take its steps: one that lives, or the first of the code.

        `turns` are the first two of each, by its identity.
        """
        if len(_made):
            return _still_waits(turns, step)
        if self._all >= _LATE:
            return False
        if len(sys.modules) != self._modules:
            self._modules = len(sys.modules)
            self._makes = any(map(makes_an_optimizer, own_files()))
        return self._makes

    def _has_ended(self) -> bool:
        leaf = None if self._leaf is None else self._leaf()
        if leaf is None or self._gradient is None or self._passes >= _MOST_ACCUMULATED:
            return True
        seen, version = self._gradient
        return leaf.grad is None or leaf.grad is not seen() or leaf.grad._version != version

    def _note(self, leaf: Any) -> None:
        self._leaf = self._gradient = None
        with suppress(Exception):
            if leaf is not None:
                self._leaf = weakref.ref(leaf)
            if leaf is not None and leaf.grad is not None:
                self._gradient = weakref.ref(leaf.grad), leaf.grad._version


def _leaf_of(outputs: Any) -> Any:
    """Weights that a backward pass of these tensors reaches; None if none is found."""
    with suppress(Exception):
        todo = [
            node for tensor in outputs if (node := getattr(tensor, "grad_fn", None)) is not None
        ]
        for _ in range(_MOST_NODES):
            node = todo.pop()
            if hasattr(node, "variable"):
                return node.variable
            todo += [before for before, _ in node.next_functions if before is not None]
    return None


@cache
def makes_an_optimizer(file: str) -> bool:
    """Whether the code of a file calls something of torch.optim that is no schedule."""
    try:
        tree = ast.parse(Path(file).read_bytes())
    except (OSError, SyntaxError, ValueError):
        return False
    names = {"torch": "torch"}
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            for alias in node.names:
                names[alias.asname or alias.name.partition(".")[0]] = (
                    alias.name if alias.asname else alias.name.partition(".")[0]
                )
        elif isinstance(node, ast.ImportFrom) and node.module:
            names |= {
                alias.asname or alias.name: f"{node.module}.{alias.name}" for alias in node.names
            }
    calls = (_whole_name(n.func, names) for n in ast.walk(tree) if isinstance(n, ast.Call))
    return any(name.startswith(f"{_OPTIM}.") and "lr_scheduler" not in name for name in calls)


def _whole_name(node: ast.AST, names: dict[str, str]) -> str:
    """The name of what is called, with its module; empty if it is not told."""
    if isinstance(node, ast.Name):
        return names.get(node.id, "")
    if isinstance(node, ast.Attribute):
        return f"{_whole_name(node.value, names)}.{node.attr}"
    return ""
