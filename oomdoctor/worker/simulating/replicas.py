"""What engines do in a rank that is simulated alone: the buckets of DDP, the products of ZeRO-3.

DDP has buckets beside the gradients of a model that each rank has whole. torch's reducer is C++
that reads tensors, so it does not run on fake ones. What it allocates is known
(torch/csrc/distributed/c10d/reducer.cpp, torch 2.6 to 2.13): before the first step one bucket for
all gradients of a type, later as many bytes in smaller ones. Before that, the first rank sends the
weights in flat copies of about 250 MiB, of which two exist at once (comm.cpp).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from contextlib import AbstractContextManager

import torch

from oomdoctor.analysis.simulator.tape import TapeBlock
from oomdoctor.records.facts.categories import TEMPORARY
from oomdoctor.units import MIB
from oomdoctor.worker.replacing import replaced
from oomdoctor.worker.simulating.shallow import WholeModel
from oomdoctor.worker.tracing.tensors import local_part
from oomdoctor.worker.tracing.trace import AllocationTrace

_COPIED = 250 * MIB
_AT_ONCE = 2


def zero3_products() -> AbstractContextManager[None]:
    """Linear layers as DeepSpeed's ZeRO-3 runs them, which gathers a weight again for the gradient.

    Its own function (`LinearFunctionForZeroStage3`, DeepSpeed 0.19 runtime/zero/linear.py) keeps
    the input of every layer. torch keeps it only where the weight is trained: not beside adapters.
    """

    class Product(torch.autograd.Function):  # type: ignore[misc]
        @staticmethod
        def forward(
            ctx: torch.autograd.function.FunctionCtx,
            input: torch.Tensor,
            weight: torch.Tensor,
            bias: torch.Tensor | None = None,
        ) -> torch.Tensor:
            ctx.save_for_backward(input, weight, bias)
            if input.dim() == 2 and bias is not None:
                return torch.addmm(bias, input, weight.t())
            output = input.matmul(weight.t())
            if bias is not None:
                output += bias
            return output

        @staticmethod
        def backward(
            ctx: torch.autograd.function.FunctionCtx, gradient: torch.Tensor
        ) -> tuple[torch.Tensor | None, ...]:
            input, weight, bias = ctx.saved_tensors
            of_input = gradient.matmul(weight) if ctx.needs_input_grad[0] else None
            rows = gradient.reshape(-1, gradient.shape[-1])
            of_weight = of_bias = None
            if ctx.needs_input_grad[1]:
                of_weight = rows.t().matmul(input.reshape(-1, input.shape[-1]))
            if bias is not None and ctx.needs_input_grad[2]:
                of_bias = rows.sum(0)
            return of_input, of_weight, of_bias

    def linear(
        input: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None = None
    ) -> torch.Tensor:
        return Product.apply(input, weight, bias)

    return replaced(torch.nn.functional, "linear", linear)


def note_replica(model: torch.nn.Module, whole: WholeModel, trace: AllocationTrace) -> None:
    """Record what DDP allocates when it wraps a loaded model."""
    held: list[int] = []
    for size in _flat_copies(_tensors(model, whole)):
        if len(held) == _AT_ONCE:
            trace.free_hidden([held.pop(0)])
        held.append(trace.note_hidden(TapeBlock(size, TEMPORARY, "ddp")))
    for block in held:
        trace.free_hidden([block])
    buckets: Counter[torch.dtype] = Counter()
    for dtype, size, trains in _tensors(model, whole):
        if trains:
            buckets[dtype] += size
    for size in buckets.values():
        trace.note_hidden(TapeBlock(size, TEMPORARY, "ddp"))


def _tensors(model: torch.nn.Module, whole: WholeModel) -> Iterator[tuple[torch.dtype, int, bool]]:
    """Type, bytes and whether it trains, of each parameter at full depth, then of each buffer."""
    for number, parameters in whole.at_full_depth():
        sizes = [local_part(parameter).untyped_storage().nbytes() for parameter in parameters]
        for _ in range(number):
            for parameter, size in zip(parameters, sizes, strict=True):
                yield parameter.dtype, size, parameter.requires_grad
    for buffer in model.buffers():
        yield buffer.dtype, buffer.untyped_storage().nbytes(), False


def _flat_copies(tensors: Iterator[tuple[torch.dtype, int, bool]]) -> Iterator[int]:
    """Bytes of each copy. A bucket of one tensor is sent as it is."""
    waiting: dict[torch.dtype, list[int]] = {}
    for dtype, size, _ in tensors:
        sizes = waiting.setdefault(dtype, [])
        sizes.append(size)
        if sum(sizes) >= _COPIED:
            if len(sizes) > 1:
                yield sum(sizes)
            sizes.clear()
    for sizes in waiting.values():
        if len(sizes) > 1:
            yield sum(sizes)
