"""What is known about values that nobody computed: the share of positive elements in a tensor.

The share is known only for tensors without negative values, from how they were made: ones, random
class numbers, one-hot masks. The storage carries it, so views share it, and a write ends it.
Positive elements count as evenly spread: each expert of a mixture gets the same number of tokens.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from fractions import Fraction
from functools import cache

import torch
from torch._ops import OpOverload

from oomdoctor.worker.replacing import replaced

_NAME = "_oomdoctor_positive_share"
_PLACES = "_oomdoctor_places"
Rule = Callable[..., Fraction | None]  # (the operator's arguments) -> share of its result


def one_hot_masks_known() -> AbstractContextManager[None]:
    """Know that one element in n is positive in a mask that `one_hot` makes of n classes."""
    one_hot = torch.nn.functional.one_hot

    def known(tensor: torch.Tensor, num_classes: int = -1) -> torch.Tensor:
        mask = one_hot(tensor, num_classes)
        _learn(mask, Fraction(1, mask.shape[-1]))
        return mask

    # Several operators make a mask; only the function knows that the result is one-hot.
    return replaced(torch.nn.functional, "one_hot", known)


def positive_share(tensor: torch.Tensor) -> Fraction | None:
    """The share of positive elements; None if it is unknown or elements may be negative."""
    return getattr(tensor.untyped_storage(), _NAME, None)


def nonzero(tensor: torch.Tensor) -> torch.Tensor | None:
    """`aten.nonzero` of a tensor with a known share: [positive elements, dimensions], else None.

    Rounded up, so that every expert gets a token even if there are few.
    """
    share = positive_share(tensor)
    if share is None:
        return None
    rows = math.ceil(share * tensor.numel())
    places = tensor.new_empty((rows, tensor.dim()), dtype=torch.int64)
    setattr(places.untyped_storage(), _PLACES, True)
    return places


def are_places(tensor: object) -> bool:
    """Whether a tensor has numbers of `nonzero`, such as those of the experts with tokens."""
    return isinstance(tensor, torch.Tensor) and hasattr(tensor.untyped_storage(), _PLACES)


def learner(func: OpOverload) -> Callable[[Sequence[object], object], None] | None:
    """What notes the share of the operator's result, or forgets it if it wrote to a tensor.

    It takes the operator's arguments and its result. None if there is nothing to note.
    """
    rule = _rules().get(func)
    if rule is not None:
        return lambda args, result: _learn(result, rule(*args))
    return _forget if func._schema.is_mutable else None


def _forget(_: Sequence[object], result: object) -> None:
    # an operator that writes to a tensor returns it
    if isinstance(result, torch.Tensor) and positive_share(result) is not None:
        _learn(result, None)


def _learn(tensor: torch.Tensor, share: Fraction | None) -> None:
    setattr(tensor.untyped_storage(), _NAME, share)


@cache
def _rules() -> dict[OpOverload, Rule]:
    """By operator. A view shares the storage of its base, so views need no rule."""
    aten = torch.ops.aten
    return {
        aten.ones.default: _all,
        aten.ones_like.default: _all,
        aten.new_ones.default: _all,
        aten.randint.default: _of_classes,
        aten.randint.generator: _of_classes,
        aten.randint.low: _from_low,
        aten.randint.low_generator: _from_low,
        aten.clone.default: _same,
        aten._to_copy.default: _same,
        aten.index.Tensor: _same,
        aten.sum.dim_IntList: _any_of,
        aten.ge.Scalar: _at_least,
        aten.gt.Scalar: _above,
        aten.ne.Scalar: _above,
    }


def _all(*_: object) -> Fraction:
    return Fraction(1)


def _of_classes(classes: int, *_: object) -> Fraction:
    return 1 - Fraction(1, classes)


def _from_low(low: int, high: int, *_: object) -> Fraction | None:
    if low == 0:
        return _of_classes(high)
    return Fraction(1) if low > 0 else None


def _same(tensor: torch.Tensor, *_: object) -> Fraction | None:
    return positive_share(tensor)


def _any_of(tensor: torch.Tensor, dims: Sequence[int], *_: object) -> Fraction | None:
    """A sum is positive where one of its elements is; these are evenly spread."""
    share = positive_share(tensor)
    if share is None:
        return None
    elements = math.prod(int(tensor.shape[dim]) for dim in dims)
    return min(Fraction(1), share * elements)


def _at_least(tensor: torch.Tensor, bound: float) -> Fraction | None:
    """A tensor with a known share has no negative elements."""
    return Fraction(1) if bound == 0 and positive_share(tensor) is not None else None


def _above(tensor: torch.Tensor, bound: float) -> Fraction | None:
    return positive_share(tensor) if bound == 0 else None
