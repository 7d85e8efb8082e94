"""A device that computes nothing: fake tensors that stand for tensors on a GPU.

They are fake CPU tensors, because autograd cannot walk fake CUDA tensors without a GPU. This module
switches on what torch and transformers do differently on a GPU. The folder `cuda` holds the kernels
that differ.

For types that torch's fake kernel of grouped products refuses, transformers' fallback stands for
torch's own product of experts. Its backward pass also makes gradients of weights, so it keeps the
input of every expert; torch keeps it only where weights are trained.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager

import torch
from torch._subclasses.fake_tensor import FakeTensor
from torch.autograd.function import FunctionCtx

from oomdoctor.worker.replacing import module_if_there, replaced
from oomdoctor.worker.simulating.device import bitsandbytes, known_values, stored, torchao_states
from oomdoctor.worker.simulating.device.mode import Remembered, SimulatedDevice, of_this_process

Product = Callable[..., torch.Tensor]


@contextmanager
def simulated_device(
    *, cuda: bool, remembered: Remembered | None = None
) -> Iterator[SimulatedDevice]:
    """Make every tensor inside the context fake; yields what tells an observer of them.

    With `cuda`, torch makes the choices that it makes on a GPU (foreach optimizers and clipping).
    Values that code reads back are those of a healthy run with unpadded rows.
    """
    with ExitStack() as stack:
        for replacement in _replacements(cuda=cuda):
            stack.enter_context(replacement)
        own = of_this_process() if remembered is None else remembered
        yield stack.enter_context(SimulatedDevice(own, cuda=cuda))


def _replacements(*, cuda: bool) -> Iterator[AbstractContextManager[None]]:
    from torch.optim import optimizer
    from torch.utils import _foreach_utils

    # `Module.to` swaps parameters, which fails for fake ones.
    yield replaced(torch.nn.Module, "_apply", _apply)
    import_utils = importlib.import_module("transformers.utils.import_utils")
    if hasattr(import_utils, "is_fake_tensor"):
        # While it is traced, transformers skips checks of values and then builds masks that a
        # real run does not build.
        yield replaced(import_utils, "is_fake_tensor", lambda tensor: False)
    experts = module_if_there("transformers.integrations.moe")
    if experts is not None and hasattr(experts, "_can_use_grouped_mm"):
        # The fallback has the same results, and fake kernels for every type.
        yield replaced(
            experts, "_can_use_grouped_mm", lambda _, weight, __: weight.dtype == torch.bfloat16
        )
    if experts is not None and hasattr(experts, "_grouped_mm"):
        yield replaced(experts, "_grouped_mm", without_inputs(experts._grouped_mm))
    yield known_values.one_hot_masks_known()
    yield from bitsandbytes.replacements(cuda=cuda)
    yield from bitsandbytes.dora_replacements()
    yield from torchao_states.replacements(cuda=cuda)
    yield from stored.replacements()
    for place in (_foreach_utils, optimizer):
        # torch uses foreach and fused kernels only for tensor types that it knows.
        types = [*place._foreach_supported_types, FakeTensor]
        yield replaced(place, "_foreach_supported_types", types)
        if cuda:
            # Fake tensors are on the CPU, where torch would not use foreach kernels.
            devices = "_get_foreach_kernels_supported_devices"
            yield replaced(place, devices, lambda: ["cuda", "cpu"])


def _apply(
    module: torch.nn.Module, function: Callable[[torch.Tensor], torch.Tensor], recurse: bool = True
) -> torch.nn.Module:
    """`Module._apply`, but with new parameters in place of those that the function changes."""
    # tied weights stay one parameter
    made: dict[int, tuple[torch.nn.Parameter, torch.nn.Parameter]] = {}
    for part in module.modules() if recurse else [module]:
        for name, parameter in part._parameters.items():
            if parameter is None:
                continue
            if id(parameter) not in made:
                with torch.no_grad():
                    value = function(parameter)
                changed = (value.dtype, value.device) != (parameter.dtype, parameter.device)
                new = torch.nn.Parameter(value, parameter.requires_grad) if changed else parameter
                made[id(parameter)] = (new, parameter)
            part._parameters[name] = made[id(parameter)][0]
        for name, buffer in part._buffers.items():
            if buffer is not None:
                part._buffers[name] = function(buffer)
    return module


def without_inputs(own: Product) -> Product:
    """transformers' `_grouped_mm`, which keeps of frozen weights what torch's own product keeps."""

    def product(input: torch.Tensor, weight: torch.Tensor, offs: torch.Tensor) -> torch.Tensor:
        if weight.requires_grad or weight.dtype == torch.bfloat16:
            return own(input, weight, offs)
        return _Frozen.apply(input.to(weight.dtype), weight, offs)

    return product


class _Frozen(torch.autograd.Function):  # type: ignore[misc]
    @staticmethod
    def forward(
        ctx: FunctionCtx, input: torch.Tensor, weight: torch.Tensor, offs: torch.Tensor
    ) -> torch.Tensor:
        ctx.save_for_backward(weight, offs)
        return torch.ops.transformers.grouped_mm_fallback(input, weight, offs)

    @staticmethod
    def backward(ctx: FunctionCtx, grad: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
        weight, offs = ctx.saved_tensors
        back = weight.transpose(-2, -1)
        return torch.ops.transformers.grouped_mm_fallback(grad, back, offs), None, None
