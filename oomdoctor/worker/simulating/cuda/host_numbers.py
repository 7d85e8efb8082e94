"""Numbers that code makes without a device: on a GPU they stay on the host.

`torch.tensor(0.0)` is on the CPU unless the caller names a device, and so are `torch.zeros(())` and
the number that is written by `tensor[0] = 1`. A simulated device is the CPU, so both look alike
there. Tables are counted in any case, because they are moved to the device before they are used.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import ParamSpec

import torch

from oomdoctor.worker.replacing import replaced
from oomdoctor.worker.tracing.trace import AllocationTrace

P = ParamSpec("P")
_on_device = False  # whether the caller named the device of what is made now


@contextmanager
def told_apart(trace: AllocationTrace) -> Iterator[None]:
    """Let `is_on_host` answer, in the whole process, and keep such numbers out of the trace."""
    from torch.utils import _device

    # torch remembers which functions `with torch.device(...)` is for when it first needs them. That
    # must not be while they are replaced, or it would not know them afterwards.
    _device._device_constructors()
    with ExitStack() as stack:
        for owner, name in (
            (torch, "tensor"),
            (torch, "as_tensor"),
            (torch.Tensor, "new_tensor"),
        ):
            own = getattr(owner, name)
            # These are the functions that make a tensor from Python's numbers.
            stack.enter_context(replaced(owner, name, _noting(own, always=owner is not torch)))
        for name in ("zeros", "ones"):
            # Optimizers count their steps in such numbers, which the trace would take for a GPU's.
            left_out = _left_out(getattr(torch, name), trace)
            stack.enter_context(replaced(torch, name, left_out))
        yield


def is_on_host(tensor: object) -> bool:
    """Whether a tensor that `lift_fresh` returns now is a number on the host."""
    return isinstance(tensor, torch.Tensor) and tensor.dim() == 0 and not _on_device


def _noting(function: Callable[P, torch.Tensor], *, always: bool) -> Callable[P, torch.Tensor]:
    def make(*args: P.args, **kwargs: P.kwargs) -> torch.Tensor:
        global _on_device
        before = _on_device
        _on_device = always or _is_named(kwargs.get("device"))
        try:
            return function(*args, **kwargs)
        finally:
            _on_device = before

    return make


def _left_out(
    function: Callable[P, torch.Tensor], trace: AllocationTrace
) -> Callable[P, torch.Tensor]:
    def make(*size: P.args, **kwargs: P.kwargs) -> torch.Tensor:
        is_number = size in (((),), ([],)) and kwargs.get("out") is None
        if not is_number or _is_named(kwargs.get("device")):
            return function(*size, **kwargs)
        with trace.paused():
            return function(*size, **kwargs)

    return make


def _is_named(device: object) -> bool:
    """Whether a caller who gives this device means the GPU."""
    # The word "cpu" means the host; a device comes from a tensor of the model.
    return _has_default_device() if device is None else device != "cpu"


def _has_default_device() -> bool:
    """Whether `with torch.device(...)` says where tensors are made."""
    from torch.overrides import _get_current_function_mode_stack
    from torch.utils._device import DeviceContext

    return any(isinstance(mode, DeviceContext) for mode in _get_current_function_mode_stack())
