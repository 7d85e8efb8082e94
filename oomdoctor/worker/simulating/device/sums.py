"""Sums and statistics as on CUDA: gradients added in place, layer_norm's statistics in fp32.

A tensor that was used twice has two gradients. The engine adds the second to the first in place if
nobody else holds the first (torch/csrc/autograd/input_buffer.cpp, `can_accumulate_inplace`, torch
1.11-2.13). Under a dispatch mode every tensor counts as a subclass, and the sum is a new tensor.

layer_norm_kernel.cu `layer_norm_cuda` makes the statistics of the accumulation type, which is fp32
for half precision (torch 1.8-2.13); the CPU does not.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from functools import cache

import torch
from torch._ops import OpOverload
from torch.utils._python_dispatch import _disable_current_modes

from oomdoctor.worker.tracing.calls import Answering, Kinds

Holders = tuple[int, int, int]  # references to a tensor, to its memory and to its Python object


def sum_of_gradients(alone: Holders, args: Sequence[torch.Tensor]) -> torch.Tensor | None:
    """The first of two gradients if the engine would add the second to it; otherwise None.

    `args` are those of `aten::add`, `alone` what `only_the_engine` returned.
    """
    if not _engine_runs():
        return None
    if not isinstance(args[1], torch.Tensor) or _holders(args) != alone:
        return None
    first, second = args
    alike = first.shape == second.shape and first.dtype == second.dtype
    return first if alike and _is_dense(first) else None


def gradient_of_index(args: Sequence[torch.Tensor]) -> torch.Tensor | None:
    """The zeros that the gradient of an indexed tensor is written to; None outside autograd.

    `args` are those of `aten::index_put`. FunctionsManual.cpp `index_backward` writes into the
    zeros that it has made, but under a dispatch mode it makes a second tensor.
    """
    if not _engine_runs():
        return None
    accumulates = len(args) > 3 and args[3]
    zeros: torch.Tensor = args[0]
    return zeros if accumulates else None


def _engine_runs() -> bool:
    return torch._C._current_graph_task_id() != -1 and not torch.is_grad_enabled()


def _is_dense(tensor: torch.Tensor) -> bool:
    """Whether its elements fill their memory without gaps, and no two share a place."""
    expected = 1
    for stride, size in sorted(zip(tensor.stride(), tensor.shape, strict=True)):
        if size != 1 and stride != expected:
            return False
        expected *= size
    return True


def _holders(args: Sequence[torch.Tensor]) -> Holders:
    """Who holds the first argument; the callers themselves must not, because they would count."""
    memory = torch._C._storage_Use_Count(args[0].untyped_storage()._cdata)
    return args[0]._use_count(), memory, sys.getrefcount(args[0])


@cache
def only_the_engine() -> Holders:
    """The references to a gradient that only the engine holds, as a dispatch mode sees them."""
    holders: list[Holders] = []

    def count(
        func: OpOverload, _: Kinds, args: Sequence[torch.Tensor], kwargs: Mapping[str, object]
    ) -> object:
        if func is torch.ops.aten.add.Tensor and not torch.is_grad_enabled():
            holders.append(_holders(args))
        return func(*args, **kwargs)

    with _disable_current_modes(), torch.enable_grad(), Answering(count):
        tensor = torch.ones(2, requires_grad=True)
        twice = tensor * 2
        (twice * 3 + twice * 4).sum().backward()
    return holders[0]


def normalized(args: Sequence[torch.Tensor]) -> tuple[torch.Tensor, ...] | None:
    """The results of `aten::native_layer_norm` as on CUDA; None if the CPU's are the same."""
    tensor, dims = args[0], len(args[1])
    if tensor.dtype not in (torch.float16, torch.bfloat16):
        return None
    rows = (*tensor.shape[: tensor.dim() - dims], *(1,) * dims)
    mean, deviation = (tensor.new_empty(rows, dtype=torch.float32) for _ in range(2))
    return tensor.new_empty(tensor.shape), mean, deviation
