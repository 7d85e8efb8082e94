"""What is known of values that nobody computed: which share of a tensor's elements is positive.

Only of tensors without negative values, by how they were made: ones, random classes, one-hot
masks. It belongs to the storage, so views share it, and a write ends it. Elements count as spread
evenly: each expert of a mixture gets the same number of tokens.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from fractions import Fraction
from functools import cache
from typing import Any
from unittest import mock

_NAME = "_oomdoctor_positive_share"
Rule = Callable[..., Fraction | None]  # (the operator's arguments) -> share of its result


@contextmanager
def one_hot_masks_known() -> Iterator[None]:
    """Within it a mask made by `one_hot` of n classes has one positive element in n."""
    import torch

    one_hot = torch.nn.functional.one_hot

    def known(tensor: Any, num_classes: int = -1) -> Any:
        mask = one_hot(tensor, num_classes)
        _learn(mask, Fraction(1, mask.shape[-1]))
        return mask

    with mock.patch.object(torch.nn.functional, "one_hot", known):
        yield


def positive_share(tensor: Any) -> Fraction | None:
    """The share of positive elements, None where it is not known or some may be negative."""
    return getattr(tensor.untyped_storage(), _NAME, None)


def nonzero(tensor: Any) -> Any:
    """`aten.nonzero` of a tensor whose share is known, [positive elements, dimensions], else None.

    Rounded up, so that few tokens still give every expert one.
    """
    import torch

    share = positive_share(tensor)
    if share is None:
        return None
    rows = math.ceil(share * tensor.numel())
    return tensor.new_empty((rows, tensor.dim()), dtype=torch.int64)


def learn(func: Any, args: Any, result: Any) -> None:
    """Take note of what an operator made of its arguments, or that it wrote to a tensor."""
    rule = _rules().get(func)
    if rule is not None:
        _learn(result, rule(*args))
    elif func._schema.is_mutable and hasattr(result, "untyped_storage"):
        _learn(result, None)  # an operator that writes to a tensor returns it


def _learn(tensor: Any, share: Fraction | None) -> None:
    setattr(tensor.untyped_storage(), _NAME, share)


@cache
def _rules() -> dict[Any, Rule]:
    """By operator; a view has its base's storage and needs no rule."""
    import torch

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
        aten.ge.Scalar: _at_least,
        aten.gt.Scalar: _above,
        aten.ne.Scalar: _above,
    }


def _all(*_: Any) -> Fraction:
    return Fraction(1)


def _of_classes(classes: int, *_: Any) -> Fraction:
    return 1 - Fraction(1, classes)


def _from_low(low: int, high: int, *_: Any) -> Fraction | None:
    if low == 0:
        return _of_classes(high)
    return Fraction(1) if low > 0 else None


def _same(tensor: Any, *_: Any) -> Fraction | None:
    return positive_share(tensor)


def _at_least(tensor: Any, bound: float) -> Fraction | None:
    """Nothing whose share is known is negative."""
    return Fraction(1) if bound == 0 and positive_share(tensor) is not None else None


def _above(tensor: Any, bound: float) -> Fraction | None:
    return positive_share(tensor) if bound == 0 else None
