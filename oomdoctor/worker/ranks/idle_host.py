"""Let large tensors of the host keep no values, where one rank stands for all.

An offloaded optimizer would otherwise really update its part of the model on this machine, which
takes its memory and its time and says nothing about a GPU. Results are made but not written, so
their pages are never taken. Small tensors are computed as always.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import torch

_LARGE_BYTES = 1 << 20


def idle_host() -> Any:
    """A dispatch mode under which operators on large tensors of the host do nothing."""
    import torch
    from torch.distributed.tensor import DTensor
    from torch.utils._python_dispatch import TorchDispatchMode
    from torch.utils._pytree import tree_leaves, tree_map_only

    def is_large(tensor: torch.Tensor) -> bool:
        size = tensor.untyped_storage().nbytes() if tensor.device.type != "meta" else 0
        return tensor.device.type == "cpu" and size >= _LARGE_BYTES

    def made(like: torch.Tensor) -> torch.Tensor:
        large = like.numel() * like.element_size() >= _LARGE_BYTES
        make = torch.empty_strided if large else torch.zeros
        if large:
            return make(like.size(), like.stride(), dtype=like.dtype, device="cpu")
        return make(like.size(), dtype=like.dtype, device="cpu")

    class IdleHost(TorchDispatchMode):  # type: ignore[misc]
        def __torch_dispatch__(
            self, func: Any, types: Any, args: Any = (), kwargs: Any = None
        ) -> Any:
            kwargs = kwargs or {}
            if any(issubclass(kind, DTensor) for kind in types):
                return NotImplemented  # it calls the operators on its part
            tensors = [one for one in tree_leaves((args, kwargs)) if isinstance(one, torch.Tensor)]
            if kwargs.get("device") is not None and torch.device(kwargs["device"]).type != "cpu":
                return func(*args, **kwargs)
            if any(one.device.type not in ("cpu", "meta") for one in tensors):
                return func(*args, **kwargs)  # a copy between host and GPU is the GPU's
            if not any(is_large(one) for one in tensors) and not _fills(func):
                return func(*args, **kwargs)
            if func._opname in ("_pin_memory", "pin_memory"):
                return torch.empty_like(args[0], pin_memory=True)
            if _is_view(func):
                return func(*args, **kwargs)
            targets = _targets(func, args, kwargs)
            if targets:  # in place: returns what it would have written, if it returns anything
                several = len(func._schema.returns) > 1
                return (tuple(targets) if several else targets[0]) if func._schema.returns else None
            shapes = tree_map_only(torch.Tensor, lambda one: one.to("meta"), (args, kwargs))
            if "device" in shapes[1]:
                shapes[1]["device"] = torch.device("meta")
            shapes[1].pop("pin_memory", None)
            return tree_map_only(torch.Tensor, made, func(*shapes[0], **shapes[1]))

    return IdleHost()


def _fills(func: Any) -> bool:
    """Whether an operator makes a tensor and writes it."""
    return func.namespace == "aten" and func._opname in ("zeros", "ones", "full", "zeros_like")


def _is_view(func: Any) -> bool:
    return any(
        result.alias_info is not None and not result.alias_info.is_write
        for result in func._schema.returns
    ) or func._opname in ("empty", "empty_like", "empty_strided", "new_empty")


def _targets(func: Any, args: Any, kwargs: Any) -> list[Any]:
    """The arguments that an operator writes in place."""
    return [
        args[place] if place < len(args) else kwargs.get(argument.name)
        for place, argument in enumerate(func._schema.arguments)
        if argument.alias_info is not None and argument.alias_info.is_write
    ]
