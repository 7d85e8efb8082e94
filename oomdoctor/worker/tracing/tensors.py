"""The tensors of a result, and those that stand behind a quantised parameter."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any


def tensors_in(result: Any) -> Iterator[Any]:
    """The tensors of an operator's result, lists and tuples taken apart."""
    import torch

    if isinstance(result, torch.Tensor):
        yield result
    elif isinstance(result, list | tuple):
        for item in result:
            yield from tensors_in(item)


def plain_tensors(tensor: Any) -> Iterator[Any]:
    """The tensor and the ones a quantised parameter carries beside it (bitsandbytes)."""
    yield tensor
    state = getattr(tensor, "quant_state", None)
    while state is not None:
        for name in ("absmax", "code", "offset"):
            part = getattr(state, name, None)
            if hasattr(part, "untyped_storage"):
                yield part
        state = getattr(state, "state2", None)
    for name in ("CB", "SCB"):
        part = getattr(tensor, name, None)
        if hasattr(part, "untyped_storage"):
            yield part


def logical_numel(parameter: Any) -> int:
    """Elements of a parameter as the user counts them: four-bit weights are packed."""
    state = getattr(parameter, "quant_state", None)
    shape = getattr(state, "shape", None)
    return int(shape.numel()) if shape is not None else int(parameter.numel())
