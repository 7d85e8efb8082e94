"""What small tensors hold whose values decide shapes: sizes of images, kinds of tokens.

A simulated tensor has no values. Those that a batch is known to have are kept beside it, and beside
all that is computed from known tensors alone: code that reads them, or whose results have a length
by value, then goes as on a GPU. Nothing is kept for a step without such tensors.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import cache
from typing import NamedTuple

import torch
from torch._ops import OpOverload
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode, unset_fake_temporarily
from torch.utils._python_dispatch import _disable_current_modes
from torch.utils._pytree import tree_leaves, tree_map

from oomdoctor.worker.protocol import UnknownValuesError
from oomdoctor.worker.replacing import replaced

_NAME = "_oomdoctor_values"
FEW_BYTES, MANY_BYTES = 1 << 21, 1 << 28
largest_bytes = FEW_BYTES
"""The memory of the largest tensor whose values are kept."""
_MADE = ("arange", "zeros", "ones", "full", "scalar_tensor", "linspace", "eye")


def know(tensor: torch.Tensor, values: torch.Tensor) -> None:
    """From now on `tensor` is known to hold `values`, of the same shape and dtype."""
    setattr(tensor, _NAME, values)


@contextmanager
def computing() -> Iterator[None]:
    """A context in which operators compute, whatever modes there are."""
    with unset_fake_temporarily(), _disable_current_modes():
        yield


def number_in(tensor: object) -> bool | int | float | None:
    """What a tensor with one element holds; None if that is not known."""
    values = values_of(tensor)
    if values is None:
        return None
    with computing():
        number: bool | int | float = values.item()
    return number


class Mask(NamedTuple):
    """A mask that chooses from a tensor; `dim` is the first dimension that it covers."""

    values: torch.Tensor
    dim: int

    def chosen(self, tensor: torch.Tensor, count: int) -> torch.Tensor:
        """What it chooses, if it is true for so many elements."""
        covered = self.dim + self.values.dim()
        return tensor.new_empty((*tensor.shape[: self.dim], count, *tensor.shape[covered:]))


def mask_of(indices: object) -> Mask | None:
    """The mask of `aten.index` or `aten.masked_select`; None without one, or with more indices."""
    chosen = list(indices) if isinstance(indices, list | tuple) else [indices]
    mask = chosen.pop() if chosen else None
    if not isinstance(mask, torch.Tensor) or mask.dtype != torch.bool:
        return None
    return Mask(mask, len(chosen)) if all(index is None for index in chosen) else None


def values_of(tensor: object) -> torch.Tensor | None:
    """What a tensor holds; None if that is not known."""
    if not isinstance(tensor, torch.Tensor):
        return None
    values: torch.Tensor | None = getattr(tensor, _NAME, None)
    if values is None and not isinstance(tensor, FakeTensor) and tensor.device.type != "meta":
        return tensor if _is_small(tensor) else None
    return values


@contextmanager
def lists_known(is_refused: Callable[[], bool] = lambda: False) -> Iterator[None]:
    """In this context lists and words are made of known tensors, and tensors of lists of these.

    All read memory themselves, where no operator is seen. While `is_refused`, a list or a word of
    whole numbers that are not known is an error: they are sizes or names of parts.
    """
    own_list, own_word, own_tensor = FakeTensor.tolist, FakeTensor.__format__, torch.tensor

    def tolist(tensor: FakeTensor) -> object:
        values = values_of(tensor)
        if values is None and tensor.dim() > 0 and is_refused():
            refuse(tensor, "a list")
        if values is None:
            return own_list(tensor)
        with computing():
            return values.tolist()

    def word(tensor: FakeTensor, specification: str) -> str:
        number = number_in(tensor) if tensor.dim() == 0 else None
        if number is None and tensor.dim() == 0 and is_refused():
            refuse(tensor, "a name")
        return own_word(tensor, specification) if number is None else format(number, specification)

    def refuse(tensor: FakeTensor, made: str) -> None:
        if not tensor.is_floating_point() and tensor.dtype != torch.bool:
            raise UnknownValuesError(
                f"cannot be simulated: {made} is made of unknown numbers; probe measures it"
            )

    def number(value: object) -> object:
        has_values = isinstance(value, FakeTensor) and values_of(value) is not None
        return tolist(value) if has_values else value

    def tensor(data: object, **kwargs: object) -> torch.Tensor:
        return own_tensor(tree_map(number, data), **kwargs)

    with (
        replaced(FakeTensor, "tolist", tolist),
        replaced(FakeTensor, "__format__", word),
        replaced(torch, "tensor", tensor),
    ):
        yield


def dynamic(
    func: OpOverload, args: Sequence[object], kwargs: Mapping[str, object]
) -> object | None:
    """The result of an operator whose result has a length by value; None if it is not known."""
    if func is torch.ops.aten.index.Tensor or func is torch.ops.aten.masked_select.default:
        return _selected(args)
    if func not in _with_length_by_value():
        return None
    real = _computed(func, args, kwargs)
    return None if real is None else _made_like(real, _tensors(args)[0])


def learn(
    func: OpOverload, args: Sequence[object], kwargs: Mapping[str, object], result: object
) -> None:
    """Keep what the result of an operator holds, if all of its tensors are known."""
    results = [tensor for tensor in tree_leaves(result) if isinstance(tensor, torch.Tensor)]
    if not results or not all(map(_is_small, results)):
        return
    given = set(map(id, _tensors((args, kwargs))))
    if any(hasattr(tensor, _NAME) and id(tensor) not in given for tensor in results):
        return  # `dynamic` has said it
    real = _computed(func, args, kwargs)
    if real is None:
        if func._schema.is_mutable:
            _forget(func, args)
        if func is torch.ops.aten.topk.default:
            dim = args[2] if len(args) > 2 else -1
            know(results[1], _evenly_chosen(args[0], results[1], dim))
        elif func is torch.ops.aten.argmax.default and len(args) == 2:
            know(results[0], _evenly_chosen(args[0], results[0], args[1]))
        return
    for tensor, value in zip(results, _tensors(real), strict=True):
        know(tensor, value)


def _evenly_chosen(scores: object, indices: torch.Tensor, dim: object) -> torch.Tensor:
    """What a router chooses if each of its experts, the classes, is chosen as often."""
    assert isinstance(scores, torch.Tensor)
    assert isinstance(dim, int)
    kept = indices.dim() == scores.dim()  # argmax may drop it
    shape = (indices.movedim(dim, -1) if kept else indices).shape
    with computing():
        chosen = (torch.arange(shape.numel()) % scores.shape[dim]).view(shape)
        return chosen.movedim(-1, dim) if kept else chosen


def _is_small(tensor: torch.Tensor) -> bool:
    held: int = tensor.untyped_storage().nbytes()
    return held <= largest_bytes


def _selected(args: Sequence[object]) -> torch.Tensor | None:
    tensor: torch.Tensor = args[0]
    mask = mask_of(args[1])
    real = None if mask is None else values_of(mask.values)
    if mask is None or real is None:
        return None
    with computing():
        rows = int(real.sum())
    result, own = mask.chosen(tensor, rows), values_of(tensor)
    if own is not None:
        with computing():
            know(result, own[(slice(None),) * mask.dim + (real,)])
    return result


def _computed(
    func: OpOverload, args: Sequence[object], kwargs: Mapping[str, object]
) -> object | None:
    tensors = _tensors((args, kwargs))
    values = [values_of(tensor) for tensor in tensors]
    if any(tensor is None for tensor in values):
        return None
    if not tensors and not func._schema.name.removeprefix("aten::").startswith(_MADE):
        return None  # random numbers
    with computing(), torch.no_grad():
        real_args, real_kwargs = tree_map(_real, (tuple(args), dict(kwargs)))
        return func(*real_args, **real_kwargs)  # type: ignore[no-any-return]


def _real(value: object) -> object:
    if isinstance(value, torch.Tensor):
        return values_of(value)
    return torch.device("cpu") if isinstance(value, torch.device) else value


def _made_like(real: object, given: torch.Tensor) -> object:
    def made(value: object) -> object:
        if not isinstance(value, torch.Tensor):
            return value
        # Not by torch itself, whose tensor would be no fake one here.
        tensor = given.new_empty_strided(value.shape, value.stride(), dtype=value.dtype)
        know(tensor, value)
        return tensor

    return tree_map(made, real)


def _forget(func: OpOverload, args: Sequence[object]) -> None:
    for argument, value in zip(func._schema.arguments, args, strict=False):
        if argument.alias_info is not None and argument.alias_info.is_write:
            for tensor in _tensors(value):
                if hasattr(tensor, _NAME):
                    delattr(tensor, _NAME)


def _tensors(tree: object) -> list[torch.Tensor]:
    return [leaf for leaf in tree_leaves(tree) if isinstance(leaf, torch.Tensor)]


def overloads(*names: str) -> Iterator[OpOverload]:
    """All overloads of these operators of torch."""
    for packet in (getattr(torch.ops.aten, name) for name in names):
        yield from (getattr(packet, name) for name in packet.overloads())


@cache
def _with_length_by_value() -> frozenset[OpOverload]:
    counted = ("nonzero", "repeat_interleave", "bincount", "argwhere")
    unique = ("unique_consecutive", "_unique2", "unique_dim", "_unique")
    return frozenset(overloads(*counted, *unique))


class ShapesOnly(FakeTensorMode):  # type: ignore[misc]
    """Runs a model for the shapes of its results, with known values where they decide these.

    A truth that is not known is no, a number is 1, and a mask that is not known selects all.
    """

    def __init__(self) -> None:
        super().__init__(allow_non_fake_inputs=True)

    def __torch_dispatch__(
        self,
        func: OpOverload,
        types: Sequence[type],
        args: Sequence[object] = (),
        kwargs: Mapping[str, object] | None = None,
    ) -> object:
        kwargs = kwargs or {}
        result = dynamic(func, args, kwargs)
        if result is None and func is torch.ops.aten._local_scalar_dense.default:
            number = number_in(args[0])
            return _unknown(args[0]) if number is None else number
        if result is None and func is torch.ops.aten.index.Tensor:
            mask, tensor = mask_of(args[1]), args[0]
            if mask is not None and isinstance(tensor, torch.Tensor):
                result = mask.chosen(tensor, mask.values.numel())
        if result is None:
            result = super().__torch_dispatch__(func, types, args, kwargs)
        learn(func, args, kwargs, result)
        return result


def _unknown(tensor: object) -> bool | int | float:
    assert isinstance(tensor, torch.Tensor)
    if tensor.dtype == torch.bool:
        return False
    return 1.0 if tensor.is_floating_point() else 1
