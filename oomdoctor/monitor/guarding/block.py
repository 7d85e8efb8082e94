"""`guard`: an out-of-memory error in its block becomes a diagnosis, or the batch is skipped."""

from __future__ import annotations

import logging
import sys
from collections.abc import Callable
from functools import cache, wraps
from types import FrameType, TracebackType
from typing import Any, Literal, ParamSpec, TypeVar

from oomdoctor.monitor.guarding.diagnosed import bound_names, diagnosed, is_out_of_memory, release
from oomdoctor.monitor.guarding.ranks import Alone, Replicated, Unknown, agreement
from oomdoctor.monitor.guarding.sharded import Sharded, is_sharded

_LOG = logging.getLogger("oomdoctor.monitor")

Arguments = ParamSpec("Arguments")
Result = TypeVar("Result")


class Guard:
    """A guard of a block against running out of GPU memory: a context manager and a decorator.

    with guard():
        trainer.train()

    An out-of-memory error becomes a DiagnosedOutOfMemoryError, which is a torch.OutOfMemoryError
    whose message says why and what helps.

    With `skip` the batch is given up instead: what the block holds is freed, gradients of `model`
    (and `optimizer`) are cleared, and the training goes on. Names that the block bound are None
    then, and `skipped` is true. The error is raised after `most_in_a_row` batches in a row. Under
    DistributedDataParallel or fully_shard, all ranks skip the batch if one of them has to; make the
    guard on all ranks and use it for all batches, because it counts. `memory` is a watch whose log
    notes it. `skips` counts skipped batches, `in_a_row` those since the last batch that was not.

    Raises:
        ValueError: `skip` without `model`.
    """

    skipping = 0
    """How many guards of this process are open that would give up their batch."""

    def __init__(
        self,
        *,
        skip: bool = False,
        model: Any = None,
        optimizer: Any = None,
        most_in_a_row: int = 3,
        memory: Any = None,
    ) -> None:
        if skip and model is None:
            raise ValueError("guard(skip=True) needs model=, whose gradients it clears")
        if most_in_a_row < 1:
            raise ValueError(f"most_in_a_row is at least 1, not {most_in_a_row}")
        self.skipped = False
        self.skips = self.in_a_row = 0
        self._skip, self._model, self._optimizer = skip, model, optimizer
        self._most, self._memory = most_in_a_row, memory
        self._ranks: Any = None
        self._frame: FrameType | None = None
        self._before: dict[str, int] = {}
        self._is_open = False

    def __enter__(self) -> Guard:
        frame = sys._getframe(1)
        self._open(frame if self._skip else None)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, _: TracebackType | None
    ) -> Literal[False]:
        # The type says False so that code behind a block is not taken for unreachable; a skipped
        # batch returns True.
        return self._close(error)  # type: ignore[return-value]

    def __call__(self, function: Callable[Arguments, Result]) -> Callable[Arguments, Result | None]:
        """Guard every call of a function. The result of a skipped batch is None."""

        @wraps(function)
        def guarded(*args: Arguments.args, **kwargs: Arguments.kwargs) -> Result | None:
            self._open(None)
            result: Result | None = None
            try:
                result = function(*args, **kwargs)
            except BaseException as error:
                if not self._close(error):
                    raise
                return None
            self._close(None)
            return None if self.skipped else result

        return guarded

    def _open(self, frame: FrameType | None) -> None:
        if self._is_open:
            raise RuntimeError("a guard cannot be entered twice; make another one")
        self._is_open, self.skipped = True, False
        Guard.skipping += self._skip
        _note_without_gpu()
        if self._skip:
            if self._ranks is None:
                self._ranks = _ranks_of(self._model)
            self._ranks.begin()
            if frame is not None:
                self._frame, self._before = frame, bound_names(frame)

    def _close(self, error: BaseException | None) -> bool:
        """Whether the error was dealt with: the batch is skipped.

        Raises:
            DiagnosedOutOfMemoryError: memory ran out and the batch is not skipped.
        """
        self._is_open = False
        Guard.skipping -= self._skip
        frame, self._frame = self._frame, None
        if error is not None and not is_out_of_memory(error):
            return False
        if error is not None and self._memory is not None:
            self._memory.failed(error)
        if not self._skip:
            if error is None:
                return False
            raise diagnosed(error) from error
        return self._skip_together(error, frame)

    def _skip_together(self, error: BaseException | None, frame: FrameType | None) -> bool:
        import torch

        refusal = self._ranks.why_not() if error is not None else None
        if error is not None and refusal is not None:
            raise diagnosed(error, f"The batch cannot be skipped: {refusal}.") from error
        failure = None
        if error is not None:
            # The message is kept, and nothing that the error refers to.
            failure = diagnosed(error)
            release(error, frame, self._before)
            torch.cuda.empty_cache()
            self._catch_up(failure)
        failed = self._ranks.agree(error is not None)
        if not failed:
            self.in_a_row = 0
            return False
        self._model.zero_grad(set_to_none=True)
        if self._optimizer is not None:
            self._optimizer.zero_grad(set_to_none=True)
        torch.cuda.empty_cache()
        self.skips += 1
        self.in_a_row += 1
        if self.in_a_row >= self._most:
            raise self._too_often(failure, failed) from None
        self.skipped = True
        self._say(failure, failed)
        return True

    def _catch_up(self, failure: Any) -> None:
        """Let the other ranks end their step.

        Raises:
            DiagnosedOutOfMemoryError: not even that fits, which takes gradients and no activations.
        """
        try:
            self._ranks.catch_up()
        except RuntimeError as error:
            if not is_out_of_memory(error):
                raise
            text = f"{failure}\n\nThe batch cannot be skipped: gradients alone do not fit."
            raise type(failure)(text, failure.diagnosis) from error

    def _too_often(self, failure: Any, failed: list[int]) -> Any:
        from oomdoctor.monitor.guarding.diagnosed import diagnosed_type

        text = f"oomdoctor: memory ran out in {self.in_a_row} batches in a row{_where(failed)}"
        if failure is None:
            return diagnosed_type()(text)
        return diagnosed_type()(f"{failure}\n\n{text}", failure.diagnosis)

    def _say(self, failure: Any, failed: list[int]) -> None:
        why = ""
        if failure is not None and failure.diagnosis is not None:
            why = f": {failure.diagnosis.verdict}"
        text = f"batch skipped{_where(failed)}, {self.skips} so far{why}"
        _LOG.warning("oomdoctor: %s", text)
        if self._memory is not None:
            self._memory.note("skipped", text)


guard = Guard


def _where(failed: list[int]) -> str:
    """On which ranks, if there are several."""
    if failed == [0]:
        return ""
    return f" on rank {failed[0]}" if len(failed) == 1 else f" on ranks {_listed(failed)}"


def _listed(ranks: list[int]) -> str:
    shown = ", ".join(map(str, ranks[:8]))
    return f"{shown} and {len(ranks) - 8} more" if len(ranks) > 8 else shown


@cache
def _note_without_gpu() -> None:
    import torch

    if not torch.cuda.is_available():
        _LOG.warning("oomdoctor: torch sees no CUDA GPU, so there is no GPU memory to guard")


def _ranks_of(model: Any) -> Alone | Replicated | Sharded:
    """How the ranks of this training skip together. All ranks call it at the same time."""
    import torch.distributed as dist

    if not dist.is_available() or not dist.is_initialized() or dist.get_world_size() == 1:
        return Alone()
    from torch.nn.parallel import DistributedDataParallel

    wrapped: Any = next(
        (m for m in model.modules() if isinstance(m, DistributedDataParallel)), None
    )
    if wrapped is not None:
        return Replicated(wrapped, agreement())
    if is_sharded(model):
        return Sharded(model, agreement())
    return Unknown()
