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
from oomdoctor.worker.tracing.calls import OperatorCall
from oomdoctor.worker.tracing.trace import AllocationTrace

P = ParamSpec("P")


class HostNumbers:
    """Knows of each number that is made whether its maker named a device."""

    _on_device = False

    @contextmanager
    def told_apart(self, trace: AllocationTrace) -> Iterator[None]:
        """Let `makes_one` answer, in the whole process, and keep such numbers out of the trace."""
        from torch.utils import _device

        # torch remembers which functions `with torch.device(...)` is for when it first needs them.
        # That must not be while they are replaced, or it would not know them afterwards.
        _device._device_constructors()
        with ExitStack() as stack:
            makers = ((torch, "tensor"), (torch, "as_tensor"), (torch.Tensor, "new_tensor"))
            for owner, name in makers:
                own = self._noting(getattr(owner, name), always=owner is not torch)
                # These are the functions that make a tensor from Python's numbers.
                stack.enter_context(replaced(owner, name, own))
            for name in ("zeros", "ones"):
                # Optimizers count their steps in them, which the trace would take for a GPU's.
                left_out = _left_out(getattr(torch, name), trace)
                stack.enter_context(replaced(torch, name, left_out))
            yield

    def makes_one(self, call: OperatorCall) -> bool:
        """Whether an operator that has just returned made a number on the host."""
        if self._on_device or call.func is not torch.ops.aten.lift_fresh.default:
            return False
        return isinstance(call.result, torch.Tensor) and call.result.dim() == 0

    def _noting(
        self, function: Callable[P, torch.Tensor], *, always: bool
    ) -> Callable[P, torch.Tensor]:
        def make(*args: P.args, **kwargs: P.kwargs) -> torch.Tensor:
            named = always or _is_named(kwargs.get("device"))
            with replaced(self, "_on_device", named):
                return function(*args, **kwargs)

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
    from torch.overrides import _get_current_function_mode_stack
    from torch.utils._device import DeviceContext

    if device is None:  # `with torch.device(...)` may say where tensors are made
        return any(isinstance(mode, DeviceContext) for mode in _get_current_function_mode_stack())
    return device != "cpu"  # the word means the host; a device comes from a tensor of the model
