"""Find the tensors in a result, and those that a quantized parameter carries."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise

import torch


def tensors_in(result: object) -> Iterator[torch.Tensor]:
    """The tensors in an operator's result, including those in lists and tuples."""
    if isinstance(result, torch.Tensor):
        yield result
    elif isinstance(result, list | tuple):
        for item in result:
            yield from tensors_in(item)


def plain_tensors(tensor: torch.Tensor) -> Iterator[torch.Tensor]:
    """The tensor, and the ones that a quantized parameter of bitsandbytes also carries.

    Of a tensor that is sharded over ranks, the part of this rank. DeepSpeed keeps it beside the
    parameter, which is empty unless it is gathered.
    """
    yield from inner_tensors(local_part(tensor))
    if hasattr(tensor, "ds_tensor"):
        yield tensor.ds_tensor
    parts = []
    state = getattr(tensor, "quant_state", None)
    while state is not None:
        parts += [getattr(state, name, None) for name in ("absmax", "code", "offset")]
        state = getattr(state, "state2", None)
    parts += [getattr(tensor, name, None) for name in ("CB", "SCB")]
    yield from (part for part in parts if hasattr(part, "untyped_storage"))


def inner_tensors(tensor: torch.Tensor) -> Iterator[torch.Tensor]:
    """The tensors that a tensor of torchao is made of; any other tensor itself."""
    if not type(tensor).__module__.startswith("torchao."):
        yield tensor
        return
    names, _ = tensor.__tensor_flatten__()
    for name in names:
        yield from inner_tensors(getattr(tensor, name))


def local_part(tensor: torch.Tensor) -> torch.Tensor:
    """What this rank has of a tensor (`DTensor`); the tensor itself if it is not sharded."""
    return getattr(tensor, "_local_tensor", tensor)


def memory_of(tensor: torch.Tensor) -> int:
    """The address of a tensor's storage object."""
    return int(tensor.untyped_storage()._cdata)


def logical_numel(parameter: torch.Tensor) -> int:
    """Elements of a parameter as a user counts them; four-bit weights are packed."""
    state = getattr(parameter, "quant_state", None)
    shape = getattr(state, "shape", None)
    return int(shape.numel()) if shape is not None else int(parameter.numel())


def tensor_bytes(tensor: torch.Tensor) -> int:
    """Bytes of a dense copy."""
    return int(tensor.numel() * tensor.element_size())


def is_flat(tensor: torch.Tensor) -> bool:
    """Whether a view with one dimension shows the same elements (`reshape` then copies nothing)."""
    sizes, strides = tensor.shape, tensor.stride()
    kept = [(size, stride) for size, stride in zip(sizes, strides, strict=True) if size != 1]
    return all(outer == size * stride for (_, outer), (size, stride) in pairwise(kept))
