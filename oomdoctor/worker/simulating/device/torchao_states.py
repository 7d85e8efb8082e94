"""The 8-bit and 4-bit optimizers of torchao on a simulated device.

Their states are tensors of tensors, and torch.compile makes their step, so neither runs on fake
tensors. Here a state is a table of its plain tensors, and the step does with memory what the
compiled one does: `TORCH_LOGS=output_code` of torch 2.12 and torchao 0.18 shows two scales and two
moments in fp32 for each parameter with quantized states, and nothing for the others.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from types import SimpleNamespace
from typing import TypeAlias

import torch
from torch.optim import Optimizer

from oomdoctor.worker.replacing import module_if_there, own_operator, replaced

# Codes, scales and a table, or a plain one.
State: TypeAlias = dict[str, torch.Tensor] | torch.Tensor
_PLACES = ("torchao.optim.adam", "torchao.prototype.low_bit_optim.adam")
_LEAST_ELEMENTS = 4096  # smaller parameters keep states in their own type


def replacements(*, cuda: bool) -> Iterator[AbstractContextManager[None]]:
    """Contexts in which torchao's optimizers step on fake tensors; none if it is not installed.

    On the CPU memory is measured on the eager step, so nothing is compiled there.
    """
    module = next(filter(None, map(module_if_there, _PLACES)), None)
    if module is None:
        return
    yield replaced(module._AdamBase, "add_param_group", _add_param_group)
    # torch wraps the step of a class when it makes the first optimizer of it.
    for kind in (module.AdamW8bit, module.AdamW4bit):
        yield replaced(kind, "step", _step if cuda else _eager_step(module._AdamBase.step))
    if cuda:
        yield replaced(module._AdamBase, "_new_buffer", _new_buffer)
    else:
        yield replaced(module, "torch", _eager())


def _add_param_group(optimizer: Optimizer, group: dict[str, object]) -> None:
    """Add a group whose learning rate is a number, because a fake tensor cannot be copied.

    torchao makes a tensor of it, 0.9 of the default, which accelerate moves to the device.
    """
    optimizer.defaults["lr"] = float(optimizer.defaults["lr"])
    torch.optim.Optimizer.add_param_group(optimizer, group)
    rates = vars(optimizer).setdefault("_rates_on_device", [])
    rates.append(torch.zeros(()))


def _eager_step(by_torchao: Callable[..., object]) -> Callable[..., None]:
    """torchao's step with a learning rate that is a tensor while it runs, as it wants."""

    def step(optimizer: Optimizer, closure: object = None) -> None:
        rates = [group["lr"] for group in optimizer.param_groups]
        for group, tensor in zip(optimizer.param_groups, optimizer._rates_on_device, strict=True):
            group["lr"] = tensor
        by_torchao(optimizer)
        for group, rate in zip(optimizer.param_groups, rates, strict=True):
            group["lr"] = rate

    return step


def _eager() -> SimpleNamespace:
    """torch as torchao's module sees it, without its compiler."""
    importlib.import_module("torch._dynamo")  # its step asks for a setting of it
    eager = SimpleNamespace(**vars(torch))
    eager.compile = lambda function, **_: function
    return eager


def _new_buffer(optimizer: Optimizer, parameter: torch.Tensor, signed: bool) -> State:
    """A state of the parameter: its codes, scales and table, or a plain tensor."""
    count, block = parameter.numel(), optimizer.block_size
    if count < _LEAST_ELEMENTS or count % block:
        return torch.zeros_like(parameter)
    packed, entries = (2, 16) if "4bit" in type(optimizer).__name__ else (1, 256)
    return {
        "codes": _zeros(parameter, count // packed, torch.uint8),
        "scale": _zeros(parameter, count // block, torch.float32),
        "qmap": _zeros(parameter, entries, torch.float32),
    }


def _zeros(parameter: torch.Tensor, count: int, dtype: torch.dtype) -> torch.Tensor:
    """Zeros made from a part of the parameter, so that the trace knows whose they are."""
    return torch.zeros_like(parameter.detach().flatten()[:count], dtype=dtype)


def _step(optimizer: Optimizer, closure: object = None) -> None:
    """Update all parameters as the compiled step does."""
    with torch.no_grad():
        for group in optimizer.param_groups:
            for parameter in group["params"]:
                if parameter.grad is not None:
                    _update(optimizer, parameter)


def _update(optimizer: Optimizer, parameter: torch.Tensor) -> None:
    state = optimizer.state[parameter]
    if not state:
        state["exp_avg"] = optimizer._new_buffer(parameter, True)
        state["exp_avg_sq"] = optimizer._new_buffer(parameter, False)
    first, second = state["exp_avg"], state["exp_avg_sq"]
    plain, gradient = parameter.detach(), parameter.grad
    if not isinstance(first, dict):
        own_operator(*_SMALL_UPDATE)(plain, gradient, first, second)
        return
    codes, other_codes = first["codes"], second["codes"]
    moments = own_operator(*_MOMENTS)(gradient, codes, other_codes, optimizer.block_size)
    scale, other_scale, moment, other_moment = moments
    own_operator(*_UPDATE)(plain, moment, other_moment, codes, other_codes)
    del moments, moment, other_moment
    first["scale"].copy_(scale)
    del scale
    second["scale"].copy_(other_scale)


def _moments(
    gradient: torch.Tensor, codes1: torch.Tensor, codes2: torch.Tensor, block: int
) -> tuple[torch.Tensor, ...]:
    count = gradient.numel()
    sizes = (count // block, count // block, count, count)
    return tuple(gradient.new_empty(size, dtype=torch.float32) for size in sizes)


_MOMENTS = (
    "low_bit_moments",
    "(Tensor g, Tensor codes1, Tensor codes2, int block) -> (Tensor, Tensor, Tensor, Tensor)",
    _moments,
)
_UPDATE = (
    "low_bit_update",
    "(Tensor(a!) p, Tensor moment1, Tensor moment2, Tensor(b!) codes1, Tensor(c!) codes2) -> ()",
)
_SMALL_UPDATE = (
    "small_update",
    "(Tensor(a!) p, Tensor g, Tensor(b!) state1, Tensor(c!) state2) -> ()",
)
