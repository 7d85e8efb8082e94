"""Answer code that reads values which nobody computed, as in a healthy run.

The attention mask has no padding unless a rung pads its rows (`padding`), the loss is a number, and
no gradient overflows. `known_values` knows more about some tensors.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import cache
from typing import TYPE_CHECKING, Any, NamedTuple

from oomdoctor.worker.simulating.device import (
    known_values,
    layer_norm,
    padding,
    scored,
    sums,
)

if TYPE_CHECKING:
    import torch
    from torch._ops import OpOverload

_TRUE = ("aten.all", "aten.eq", "aten._is_all_true")
_FINDS_OVERFLOW = "aten._amp_foreach_non_finite_check_and_unscale_"
_NAME = "_oomdoctor_answer"
_negative = False
_whole = 1


Note = Callable[[Sequence[Any], Any], None]  # of the arguments and the result


class Answers(NamedTuple):
    """What to do about the values of one operator.

    `before` may give its result, from its arguments; None if it has to run. `after` notes what is
    known of the result.
    """

    before: Callable[[Sequence[Any]], Any] | None
    after: tuple[Note, ...]


@cache
def answers_of(func: OpOverload) -> Answers | None:
    """What to do about the values of an operator; None if nothing."""
    import torch

    before: Callable[[Sequence[Any]], Any] | None = None
    if func is torch.ops.aten._local_scalar_dense.default:
        before = _read
    elif func is torch.ops.aten.nonzero.default:
        before = _positions
    elif func is torch.ops.aten.index.Tensor:
        before = scored.selected
    elif func is torch.ops.aten.add.Tensor:
        before = sums.sum_of_gradients
    elif func is torch.ops.aten.index_put.default:
        before = sums.gradient_of_index
    elif func is torch.ops.aten.native_layer_norm.default:
        before = layer_norm.normalized
    after: list[Note] = []
    if str(func).startswith(_TRUE):
        after.append(_holds)
    elif str(func).startswith(_FINDS_OVERFLOW):
        after.append(_no_overflow)
    learn = known_values.learner(func)
    if learn is not None:
        after.append(learn)
    passed_on = padding.rule_of(func)
    if passed_on is not None:
        after.append(passed_on)
    return Answers(before, tuple(after)) if before is not None or after else None


def _read(args: Sequence[Any]) -> bool | int | float:
    """The value of a tensor with one element."""
    import torch

    tensor: torch.Tensor = args[0]
    constant = getattr(tensor, "constant", None)
    if constant is not None:
        value: bool | int | float = constant.item()
        return value
    known = getattr(tensor, _NAME, None)
    if tensor.dtype == torch.bool:
        return bool(known)
    if known is not None:
        return float(known)
    return 1.0 if tensor.is_floating_point() else _whole


def _positions(args: Sequence[Any]) -> torch.Tensor | None:
    return known_values.nonzero(args[0])


def _holds(_: Sequence[Any], result: Any) -> None:
    setattr(result, _NAME, not _negative)


@contextmanager
def negative() -> Iterator[None]:
    """What code asks for in this context does not hold."""
    global _negative
    before, _negative = _negative, True
    try:
        yield
    finally:
        _negative = before


@contextmanager
def reads_as(number: int) -> Iterator[None]:
    """Whole numbers that code asks for in this context are this one, not 1."""
    global _whole
    before, _whole = _whole, number
    try:
        yield
    finally:
        _whole = before


def _no_overflow(args: Sequence[Any], _: Any) -> None:
    setattr(args[1], _NAME, False)
