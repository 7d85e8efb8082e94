"""CUDA graphs that the user's code captures: the steps before are a warm-up, replays are steps.

A script that captures a whole training step takes a few steps first. Memory repeats among them, but
the graph's own memory pool comes later. Its replays call no optimizer.
"""

from __future__ import annotations

import re
import weakref
from collections.abc import Callable
from functools import cache, wraps
from pathlib import Path
from typing import Any

from oomdoctor.monitor.inside.process_facts import own_files

_WAITS = 16  # steps after which no graph is expected any more; for DDP, torch advises 11
_CAPTURES = re.compile(r"\bCUDAGraph\(|\bcuda\.graph\(|\bmake_graphed_callables\(")


class Graphs:
    """Watches the CUDA graphs of a process and calls `end_step` after a replay with a step."""

    def __init__(self, end_step: Callable[[], None]) -> None:
        self._end_step = end_step
        self._current: Any = None  # the graph that is being captured
        self._is_late = False  # one was captured
        self._with_step: weakref.WeakSet[Any] = weakref.WeakSet()

    def begin(self) -> None:
        """Watch from now on."""
        import torch

        graph = torch.cuda.CUDAGraph
        begin, end, replay = graph.capture_begin, graph.capture_end, graph.replay

        @wraps(begin)
        def begun(captured: Any, *args: Any, **kwargs: Any) -> Any:
            self._current = captured
            return begin(captured, *args, **kwargs)

        @wraps(end)
        def ended(captured: Any) -> Any:
            self._current, self._is_late = None, True
            return end(captured)

        @wraps(replay)
        def replayed(captured: Any) -> Any:
            result = replay(captured)
            if captured in self._with_step:
                self._end_step()
            return result

        for name, method in (
            ("capture_begin", begun),
            ("capture_end", ended),
            ("replay", replayed),
        ):
            setattr(graph, name, method)

    def take_step(self) -> bool:
        """Whether an optimizer's step that has just ended is part of a graph that is captured."""
        if self._current is None:
            return False
        self._with_step.add(self._current)
        return True

    def awaits(self, step: int) -> bool:
        """Whether the user's code is yet to capture its first graph."""
        return not self._is_late and step < _WAITS and any(map(_captures, own_files()))


@cache
def _captures(file: str) -> bool:
    try:
        return bool(_CAPTURES.search(Path(file).read_text(encoding="utf-8", errors="replace")))
    except OSError:
        return False
