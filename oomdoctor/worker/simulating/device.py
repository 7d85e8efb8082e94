"""A device that computes nothing: fake tensors that stand for tensors on a GPU.

Fake CPU tensors are used, because autograd cannot walk fake CUDA tensors without a GPU. What torch
and transformers do differently on a GPU is switched on here; kernels that differ are mapped in
`cuda_kernels`, `cuda_attention` and `cuda_autocast`.
"""

from __future__ import annotations

import importlib
from collections.abc import Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager
from typing import Any
from unittest import mock

from oomdoctor.worker.protocol.unsupported import UnsupportedError
from oomdoctor.worker.simulating import bitsandbytes, known_values

# What a training step asks of a value that nobody computed, and the answer of a healthy run: the
# attention mask has no padding, the loss is a number.
_TRUE = ("aten.all", "aten.eq")
_FINDS_OVERFLOW = "aten._amp_foreach_non_finite_check_and_unscale_"


@contextmanager
def simulated_device(*, cuda: bool) -> Iterator[Any]:
    """Tensors made within are fake; yields the fake tensor mode.

    With `cuda` torch chooses what it chooses on a GPU (foreach optimizers and clipping). Values
    that are read back are those of a healthy run with unpadded rows.
    """
    from torch._subclasses.fake_tensor import FakeTensorMode

    with ExitStack() as stack:
        for patch in _patches(cuda):
            stack.enter_context(patch)
        mode = FakeTensorMode(allow_non_fake_inputs=True)
        stack.enter_context(mode)
        stack.enter_context(_answers())
        yield mode


def _patches(cuda: bool) -> Iterator[AbstractContextManager[Any]]:
    import torch
    from torch._subclasses.fake_tensor import FakeTensor
    from torch.optim import optimizer
    from torch.utils import _foreach_utils

    # Parameters that are fake cannot be swapped, which `Module.to` would do.
    yield mock.patch.object(torch.nn.Module, "_apply", _apply)
    # transformers leaves out checks that read values while it is traced, and then builds masks that
    # a real run has no need of.
    import_utils = importlib.import_module("transformers.utils.import_utils")
    if hasattr(import_utils, "is_fake_tensor"):
        yield mock.patch.object(import_utils, "is_fake_tensor", lambda tensor: False)
    experts = _module("transformers.integrations.moe")
    if hasattr(experts, "_can_use_grouped_mm"):
        # Its fallback has the same results, and fake kernels for every type.
        yield mock.patch.object(experts, "_can_use_grouped_mm", _is_bfloat16)
    yield known_values.one_hot_masks_known()
    yield from bitsandbytes.patches(cuda)
    # Whether foreach and fused kernels are used depends on the tensors' types and on the device.
    for place in (_foreach_utils, optimizer):
        types = [*place._foreach_supported_types, FakeTensor]
        yield mock.patch.object(place, "_foreach_supported_types", types)
        if cuda:
            yield mock.patch.object(place, "_get_foreach_kernels_supported_devices", _as_on_cuda)


def _module(name: str) -> Any:
    """A module of transformers, None in a version that has no such module."""
    try:
        return importlib.import_module(name)
    except ImportError:
        return None


def _is_bfloat16(_: Any, weight: Any, __: Any) -> bool:
    import torch

    return bool(weight.dtype == torch.bfloat16)


def _as_on_cuda() -> list[str]:
    return ["cuda", "cpu"]


def _apply(module: Any, function: Any, recurse: bool = True) -> Any:
    """`Module._apply` that puts new parameters in place of those that the function changes."""
    import torch

    made: dict[int, tuple[Any, Any]] = {}  # tied weights stay one parameter
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


def _answers() -> AbstractContextManager[Any]:
    import torch
    from torch.utils._python_dispatch import TorchDispatchMode

    class Answers(TorchDispatchMode):  # type: ignore[misc]
        """Answers what is read back, and names the operator that cannot be answered."""

        def __torch_dispatch__(
            self, func: Any, types: Any, args: Any = (), kwargs: Any = None
        ) -> Any:
            if func is torch.ops.aten._local_scalar_dense.default:
                return _answer(args[0])
            if func is torch.ops.aten.nonzero.default:
                found = known_values.nonzero(args[0])
                if found is not None:
                    return found
            try:
                result = func(*args, **(kwargs or {}))
            except RuntimeError as error:
                if type(error).__module__.startswith("torch._subclasses"):
                    raise UnsupportedError(
                        f"cannot be simulated: {func} depends on the values of its tensors"
                    ) from error
                raise
            if str(func).startswith(_TRUE):
                result._oomdoctor_answer = True
            elif str(func).startswith(_FINDS_OVERFLOW):
                args[1]._oomdoctor_answer = False
            known_values.learn(func, args, result)
            return result

    return Answers()


def _answer(tensor: Any) -> bool | int | float:
    import torch

    constant = getattr(tensor, "constant", None)
    if constant is not None:
        value: bool | int | float = constant.item()
        return value
    known = getattr(tensor, "_oomdoctor_answer", None)
    if tensor.dtype == torch.bool:
        return bool(known)
    if known is not None:
        return float(known)
    return 1.0 if tensor.is_floating_point() else 1
