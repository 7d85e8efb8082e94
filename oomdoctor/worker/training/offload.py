"""What a rung keeps in host memory: saved activations, optimizer states.

Both memories hold CPU tensors where the device is simulated or is the CPU itself, so whatever goes
to the host is made under `on_host`: there the trace counts nothing.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any

from oomdoctor.records.config import TrainConfig

OnHost = Callable[[], AbstractContextManager[None]]


def uses_host(config: TrainConfig) -> bool:
    """Whether a training step copies between the device and the host."""
    return config.offload != "none" or config.activation_checkpointing == "offload"


def saved_on_host(on_host: OnHost) -> Any:
    """Hooks under which autograd saves to the host and copies back when the backward pass asks.

    They do what `torch.autograd.graph.save_on_cpu(pin_memory=True)` does, which fails without an
    accelerator and makes no copy of a CPU tensor.
    """
    import torch

    def pack(tensor: Any) -> tuple[Any, Any]:
        return tensor.device, _copy_on_host(tensor, on_host)

    def unpack(packed: tuple[Any, Any]) -> Any:
        device, kept = packed
        restored = torch.empty(kept.shape, dtype=kept.dtype, device=device)
        return restored.copy_(kept, non_blocking=True)

    return torch.autograd.graph.saved_tensors_hooks(pack, unpack)


def on_host_optimizer(optimizer: Any, on_host: OnHost) -> Any:
    """`optimizer`, which has not stepped yet, with its states and its update on the host.

    The device keeps weights and gradients. A step copies the gradients (clipped already) to the
    host, updates host copies of the weights there in the same types, and copies these back; the
    device needs nothing on top for it. The result has the parameters of the device in its groups,
    as clipping and the gradient scaler want them, and no states of its own.
    """
    import torch

    class HostOptimizer(torch.optim.Optimizer):  # type: ignore[misc]
        def __init__(self) -> None:
            super().__init__([dict(group) for group in optimizer.param_groups], {})
            self._pairs: list[tuple[Any, Any]] = []
            for group in optimizer.param_groups:
                pairs = [(p, _copy_on_host(p.detach(), on_host)) for p in group["params"]]
                group["params"] = [host for _, host in pairs]
                self._pairs += pairs

        @torch.no_grad()  # type: ignore[untyped-decorator]
        def step(self, closure: Any = None) -> None:
            with on_host():
                for weight, host in self._pairs:
                    _copy_gradient(weight, host)
                if torch.cuda.is_initialized():
                    torch.cuda.current_stream().synchronize()
                optimizer.step()
                for weight, host in self._pairs:
                    weight.copy_(host, non_blocking=True)

    return HostOptimizer()


def _copy_gradient(weight: Any, host: Any) -> None:
    import torch

    if weight.grad is None:
        host.grad = None
        return
    if host.grad is None:
        host.grad = torch.empty_like(host, pin_memory=weight.is_cuda)
    host.grad.copy_(weight.grad, non_blocking=True)


def _copy_on_host(tensor: Any, on_host: OnHost) -> Any:
    """A copy in host memory, pinned where the device can read it directly."""
    import torch

    with on_host():
        copy = torch.empty(
            tensor.shape, dtype=tensor.dtype, device="cpu", pin_memory=tensor.is_cuda
        )
        return copy.copy_(tensor, non_blocking=True)
