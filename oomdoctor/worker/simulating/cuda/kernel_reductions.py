"""What kernels hold that sum, compare or normalize."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod

import torch

from oomdoctor.analysis.simulator.card import Card, RowSum
from oomdoctor.worker.tracing.calls import OperatorCall
from oomdoctor.worker.tracing.steps import OTHERS, Result, Scratch, Step
from oomdoctor.worker.tracing.tensors import tensor_bytes
from oomdoctor.worker.training.inspection import torch_release

_CHUNK = 65536  # kChunkSize
_ALREADY_WIDE = ("torch.int64", "torch.complex64", "torch.complex128")


def foreach_norm(call: OperatorCall, _: Card) -> tuple[Step, ...]:
    """ForeachReduceOp.cu `_foreach_tensor_norm_cuda_impl`: partial sums.

    See `norm_entries`, which says how many entries they have.
    """
    tensors = [tensor for tensor in call.tensor("self") if tensor.numel()]
    if not tensors:
        return ()
    item = max(4, tensors[0].element_size())
    *offsets, partial = norm_entries(tensors)
    return (*(8 * sum(each) for each in offsets), item * sum(partial), Result(OTHERS))


def norm_entries(tensors: Sequence[torch.Tensor]) -> tuple[list[int], ...]:
    """The entries of each block that `foreach_norm` takes: for each tensor, then for none of them.

    There is one partial sum for each chunk of 65,536 elements. Up to torch 2.14 every tensor gets
    as many as the largest one, so a large embedding among many small tensors makes this several
    MiB. From 2.15 on (pull 190549) each has its own, and a table says where they begin and end.
    """
    chunks = [-(-tensor.numel() // _CHUNK) for tensor in tensors]
    if torch_release() < (2, 15):
        return ([max(chunks)] * len(chunks),)
    return [*[1] * len(chunks), 1], chunks


def reduced(call: OperatorCall, _: Card) -> tuple[Step, ...]:
    """Reduce.cuh `gpu_reduce_kernel`: partial sums and semaphores of sums over rows.

    Sums along contiguous memory leave a few KiB at most, which are left out. ReduceOps.cpp: a sum
    of whole numbers or truths first makes them int64.
    """
    tensor, dims = call.tensor("self"), call.sizes("dim")
    kept = set(range(tensor.dim())) - {dim % max(1, tensor.dim()) for dim in dims}
    if not dims or not tensor.is_floating_point():
        counted = str(tensor.dtype) not in _ALREADY_WIDE and not tensor.is_floating_point()
        return (8 * tensor.numel(),) if counted and not call.argument("dtype") else ()
    shape, strides = tensor.shape, tensor.stride()
    along = sorted((strides[dim], shape[dim]) for dim in kept if shape[dim] > 1)
    across = [strides[dim] for dim in range(tensor.dim()) if dim not in kept and shape[dim] > 1]
    if not along or not across or along[0][0] > min(across):
        return ()
    vector = 1
    if along[0][0] == 1:
        extent = 1
        others = list(across)
        for stride, size in along:
            if stride == extent:
                extent *= size
            else:
                others.append(stride)
        vector = next(n for n in (4, 2, 1) if all(v % n == 0 for v in (extent, *others)))
    results = prod(size for _, size in along)
    item = tensor.element_size()
    of = RowSum(results, tensor.numel() // results, vector, item, max(4, item))
    return tuple(
        Scratch(0, row_sum=of._replace(semaphores=semaphores)) for semaphores in (False, True)
    )


def extreme(call: OperatorCall, _: Card) -> tuple[Step, ...]:
    """ReduceAllOps.cpp `max` and `min` of all elements: a copy of those that are no flat memory."""
    tensor = call.tensor("self")
    of_all = call.argument("dim") is None and call.argument("other") is None
    if not of_all or tensor.is_contiguous():
        return ()
    return (Result(0), tensor_bytes(tensor))


def running(call: OperatorCall, _: Card) -> tuple[Step, ...]:
    """ScanKernels.cpp `cumsum_cuda_kernel`: the elements as what is summed, if they are not yet."""
    tensor = call.tensor("self")
    wanted: torch.dtype = call.argument("dtype") or tensor.dtype
    is_summed = tensor.is_floating_point() or str(wanted) in _ALREADY_WIDE
    if wanted == tensor.dtype and is_summed:
        return ()
    item = wanted.itemsize if wanted.is_floating_point else 8
    return (Result(0), item * tensor.numel())


def safe_softmax(call: OperatorCall, _: Card) -> tuple[Step, ...]:
    """SoftMax.cpp `_safe_softmax` (torch 2.6-2.13): which scores and which rows are masked, one
    byte each, and the number that masked rows get."""
    scores = call.tensor("self")
    rows = scores.numel() // max(1, scores.shape[call.number("dim")])
    return (int(scores.numel()), int(rows), scores.element_size())


def normalized(call: OperatorCall, _: Card) -> tuple[Step, ...]:
    """layer_norm_kernel.cu `layer_norm_cuda`: a copy of what is not contiguous, such as Whisper's
    hidden states behind its convolutions. That of a gradient is made after the results.
    """
    tensors = (call.tensor("input"), call.tensor("grad_out"))
    before, after = (
        () if tensor is None or tensor.is_contiguous() else (tensor_bytes(tensor),)
        for tensor in tensors
    )
    return (*before, Result(OTHERS), *after) if before or after else ()


def softmax_backward(call: OperatorCall, _: Card) -> tuple[Step, ...]:
    """SoftMax.cu `softmax_backward_cuda_out`: the product of the gradient and the output."""
    grad = call.tensor("grad_output")
    return (grad.numel() * max(grad.element_size(), call.tensor("output").element_size()),)
