"""What a rung keeps in host memory: saved activations and optimizer states.

If the device is simulated or is the CPU, host and device both hold CPU tensors. Everything that
goes to the host is therefore made under `on_host`, where the trace counts nothing.
"""

from __future__ import annotations

import functools

import torch
from torch.autograd.graph import saved_tensors_hooks

from oomdoctor.worker.protocol import OnHost
from oomdoctor.worker.training.setup import Setup

_LEAST_ELEMENTS = 1024  # as TRL's and torchtune's `OffloadActivations` do


def keep_activations_on_host(setup: Setup) -> None:
    """Keep what the forward pass saves in host memory; weights stay where they are."""
    forward, on_host = setup.model.forward, setup.on_host

    @functools.wraps(forward)
    def offloading(*args: object, **kwargs: object) -> object:
        with saved_on_host(on_host, least_elements=_LEAST_ELEMENTS):
            return forward(*args, **kwargs)

    setup.model.forward = offloading


def saved_on_host(on_host: OnHost, least_elements: int = 0) -> saved_tensors_hooks:
    """Make autograd save tensors on the host and copy them back for the backward pass.

    Does the same as `torch.autograd.graph.save_on_cpu(pin_memory=True)`, which fails without an
    accelerator and does not copy a CPU tensor. With `least_elements`, weights and smaller tensors
    stay on the device.
    """

    def stays(tensor: torch.Tensor) -> bool:
        owner = tensor if tensor._base is None else tensor._base
        return isinstance(owner, torch.nn.Parameter) or tensor.numel() < least_elements

    def pack(tensor: torch.Tensor) -> tuple[torch.device | None, torch.Tensor]:
        if least_elements and stays(tensor):
            return None, tensor
        return tensor.device, _copy_on_host(tensor, on_host)

    def unpack(packed: tuple[torch.device | None, torch.Tensor]) -> torch.Tensor:
        device, kept = packed
        if device is None:
            return kept
        restored = torch.empty(kept.shape, dtype=kept.dtype, device=device)
        return restored.copy_(kept, non_blocking=True)

    return torch.autograd.graph.saved_tensors_hooks(pack, unpack)


def on_host_optimizer(optimizer: torch.optim.Optimizer, on_host: OnHost) -> torch.optim.Optimizer:
    """Move the states and the update of `optimizer` to the host; it must not have stepped yet.

    The device keeps weights and gradients. A step copies the gradients (already clipped) to the
    host, updates copies of the weights there in the same types, and copies these back. This takes
    no extra memory on the device. The returned optimizer has the device's parameters in its groups,
    as clipping and the gradient scaler expect, and has no states.
    """

    class HostOptimizer(torch.optim.Optimizer):  # type: ignore[misc]
        def __init__(self) -> None:
            super().__init__([dict(group) for group in optimizer.param_groups], {})
            self._pairs: list[tuple[torch.Tensor, torch.Tensor]] = []
            for group in optimizer.param_groups:
                pairs = [(p, _copy_on_host(p.detach(), on_host)) for p in group["params"]]
                group["params"] = [host for _, host in pairs]
                self._pairs += pairs

        @torch.no_grad()  # type: ignore[untyped-decorator]
        def step(self, closure: object = None) -> None:
            with on_host():
                for weight, host in self._pairs:
                    _copy_gradient(weight, host)
                if torch.cuda.is_initialized():
                    torch.cuda.current_stream().synchronize()
                optimizer.step()
                for weight, host in self._pairs:
                    weight.copy_(host, non_blocking=True)

    return HostOptimizer()


def _copy_gradient(weight: torch.Tensor, host: torch.Tensor) -> None:
    if weight.grad is None:
        host.grad = None
        return
    if host.grad is None:
        host.grad = torch.empty_like(host, pin_memory=weight.is_cuda)
    host.grad.copy_(weight.grad, non_blocking=True)


def _copy_on_host(tensor: torch.Tensor, on_host: OnHost) -> torch.Tensor:
    """A copy in host memory; pinned for a GPU, which can then read it directly."""
    with on_host():
        copy = torch.empty(
            tensor.shape, dtype=tensor.dtype, device="cpu", pin_memory=tensor.is_cuda
        )
        return copy.copy_(tensor, non_blocking=True)
