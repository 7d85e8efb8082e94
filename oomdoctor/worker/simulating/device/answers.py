"""Answer code that reads values which nobody computed, as in a healthy run.

The attention mask has no padding unless a rung pads its rows (`padding`), the loss is a number, and
no gradient overflows. `known_values` knows more about some tensors.

Tell a simulated step how many tokens a mask selects, which only its values would say.

TRL's losses index tensors with a mask of the completions: the scored tokens of each row.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from fractions import Fraction
from functools import cache
from typing import NamedTuple

import torch
from torch._ops import OpOverload

from oomdoctor.worker.simulating.device import known_values, padding, sums
from oomdoctor.worker.simulating.replacing import replaced

_TRUE = ("aten.all", "aten.eq", "aten._is_all_true")
_FINDS_OVERFLOW = "aten._amp_foreach_non_finite_check_and_unscale_"
_NAME = "_oomdoctor_answer"
_negative = False
_whole = 1


Note = Callable[[Sequence[object], object], None]  # of the arguments and the result


_share: Fraction | None = None


class Answers(NamedTuple):
    """What to do about the values of one operator.

    `before` may give its result, from its arguments; None if it has to run. `after` notes what is
    known of the result.
    """

    before: Callable[[Sequence[object]], object] | None
    after: tuple[Note, ...]


@cache
def answers_of(func: OpOverload) -> Answers | None:
    """What to do about the values of an operator; None if nothing."""
    before: Callable[[Sequence[object]], object] | None = None
    if func is torch.ops.aten._local_scalar_dense.default:
        before = _read
    elif func is torch.ops.aten.nonzero.default:
        before = _positions
    elif func is torch.ops.aten.index.Tensor:
        before = selected
    elif func is torch.ops.aten.add.Tensor:
        before = sums.sum_of_gradients
    elif func is torch.ops.aten.index_put.default:
        before = sums.gradient_of_index
    elif func is torch.ops.aten.native_layer_norm.default:
        before = sums.normalized
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


def _read(args: Sequence[object]) -> bool | int | float:
    """The value of a tensor with one element."""
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


def _positions(args: Sequence[object]) -> torch.Tensor | None:
    return known_values.nonzero(args[0])


def _holds(_: Sequence[object], result: object) -> None:
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


def _no_overflow(args: Sequence[object], _: object) -> None:
    setattr(args[1], _NAME, False)


@contextmanager
def scored(share: Fraction | None) -> Iterator[None]:
    """In this context a mask that indexes a tensor is true for this share of its elements."""
    global _share
    before, _share = _share, share
    try:
        yield
    finally:
        _share = before


def selected(args: Sequence[object]) -> torch.Tensor | None:
    """`aten.index` with a mask whose share is known; None for any other."""
    tensor: torch.Tensor = args[0]
    indices = args[1]
    if _share is None or not isinstance(indices, list | tuple) or len(indices) != 1:
        return None
    mask = indices[0]
    if mask is None or mask.dtype != torch.bool:
        return None
    rows = math.ceil(_share * mask.numel())
    result: torch.Tensor = tensor.new_empty((rows, *tensor.shape[mask.dim() :]))
    return result


@contextmanager
def several_in_a_row(several: bool) -> Iterator[None]:
    """With `several`, transformers finds that the position ids of a row restart."""
    import transformers

    masks = getattr(transformers, "masking_utils", None)
    find = getattr(masks, "find_packed_sequence_indices", None)
    if find is None or not several:
        yield
        return

    def found(position_ids: torch.Tensor) -> torch.Tensor | None:
        with negative():
            indices: torch.Tensor | None = find(position_ids)
        return indices

    # It asks whether the last token still belongs to the first document, and nobody computed that.
    with replaced(masks, "find_packed_sequence_indices", found):
        yield
