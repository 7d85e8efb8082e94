"""Numbers that code makes without a device: on a GPU they stay on the host.

`torch.tensor(0.0)` is on the CPU unless the caller names a device, and so is the number that is
written by `tensor[0] = 1`. A simulated device is the CPU, so both look alike there. Tables are
counted in any case, because they are moved to the device before they are used.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

from oomdoctor.worker.simulating.replacing import replaced

_on_device = False  # whether the caller named the device of what is made now


@contextmanager
def told_apart() -> Iterator[None]:
    """Let `is_on_host` answer, in the whole process."""
    import torch

    with ExitStack() as stack:
        for owner, name in (
            (torch, "tensor"),
            (torch, "as_tensor"),
            (torch.Tensor, "new_tensor"),
        ):
            own = getattr(owner, name)
            # These are the functions that make a tensor from Python's numbers.
            stack.enter_context(replaced(owner, name, _noting(own, always=owner is not torch)))
        yield


def is_on_host(tensor: Any) -> bool:
    """Whether a tensor that `lift_fresh` returns now is a number on the host."""
    return tensor.dim() == 0 and not _on_device


def _noting(function: Any, *, always: bool) -> Any:
    def make(*args: Any, **kwargs: Any) -> Any:
        global _on_device
        device = kwargs.get("device")
        before = _on_device
        # The word "cpu" means the host; a device comes from a tensor of the model.
        named = _has_default_device() if device is None else device != "cpu"
        _on_device = always or named
        try:
            return function(*args, **kwargs)
        finally:
            _on_device = before

    return make


def _has_default_device() -> bool:
    """Whether `with torch.device(...)` says where tensors are made."""
    from torch.overrides import _get_current_function_mode_stack
    from torch.utils._device import DeviceContext

    return any(isinstance(mode, DeviceContext) for mode in _get_current_function_mode_stack())
