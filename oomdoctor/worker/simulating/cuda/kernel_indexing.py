"""What kernels hold that read or write by index: embeddings, gathers and scatters."""

from __future__ import annotations

from math import prod

import torch

from oomdoctor.analysis.simulator.card import Card
from oomdoctor.worker.tracing.calls import OperatorCall
from oomdoctor.worker.tracing.steps import Freed, Result, Scratch, Step
from oomdoctor.worker.tracing.tensors import is_flat, tensor_bytes


def embedding(call: OperatorCall, _: Card) -> tuple[Step, ...]:
    """Embedding.cpp `embedding_symint`: `reshape(-1)` copies indices that are no flat memory."""
    indices = call.tensor("indices")
    return () if is_flat(indices) else (tensor_bytes(indices), Result(0))


def embedding_backward(call: OperatorCall, _: Card) -> tuple[Step, ...]:
    """Embedding.cu `embedding_dense_backward_cuda`, EmbeddingBackwardKernel.cu (torch 1.11-2.13).

    Up to 3,072 tokens (`SORTED_ROWS`), one kernel works in place. Above that, the indices are
    sorted and cut into segments. Each segment is summed in parts of ten rows, and one fp32 row is
    kept for each part; how many there are at most is known without reading them. What the sort and
    the scans take for themselves is left out: except for the sort, it is a few KiB.
    """
    grad, indices = call.tensor("grad_output"), call.tensor("indices")
    copies = [tensor_bytes(tensor) for tensor in (grad, indices) if not tensor.is_contiguous()]
    tokens, index = indices.numel(), tensor_bytes(indices)
    row = grad.shape[-1] * max(4, grad.element_size())
    segments = call.number("num_weights")
    # Where they are sorted in any case, there may be less, but never more.
    rows = 0 if call.argument("scale_grad_by_freq") else tokens
    segments = segments if rows else 0
    sorted_indices, order, positions = (Scratch(index, rows) for _ in range(3))
    begins, keys, parts, offsets = (Scratch(index, rows) for _ in range(4))
    first = len(copies)
    return (
        *copies,
        *(sorted_indices, order, positions, Freed(first + 2), Result(0)),
        *(begins, Scratch(8, rows), keys, Freed(first + 5), parts, offsets),
        *(Scratch(8, rows), Scratch(index, rows, segments), Scratch(tokens * row, rows, segments)),
    )


_COUNT = (4, 1, Freed(1))  # the number of elements that a mask selects, and what the sum takes
_SCAN = 1279  # what DeviceScan takes for a few thousand elements
_SELECT = 1023  # what DeviceSelect takes for up to a few thousand elements


def nonzero(call: OperatorCall, _: Card) -> tuple[Step, ...]:
    """Nonzero.cu `nonzero_cuda_out_impl`: the elements are counted, then selected."""
    return (*_COUNT, Result(0), _SELECT, Freed(2))


def index(call: OperatorCall, _: Card) -> tuple[Step, ...]:
    """TensorAdvancedIndexing.cpp `AdvancedIndex`: on CUDA all indices get the same strides.

    A mask becomes the places of its elements (`expandTensors`).
    """
    indices = call.tensors("indices")
    if any(_is_mask(index) for index in indices):
        mask, *others = indices
        result: torch.Tensor = call.result
        return () if others else (*_places(mask, result.shape[0]), Result(0))
    if len(indices) < 2:
        return ()
    alike = torch.broadcast_tensors(*indices)
    if len({index.stride() for index in alike}) == 1:
        return ()
    return (*(tensor_bytes(index) for index in alike if not index.is_contiguous()), Result(0))


def index_put(call: OperatorCall, _: Card) -> tuple[Step, ...]:
    """Indexing.cu `index_put_with_sort_kernel`, used when values are accumulated (torch 2.0-2.13).

    It allocates linear, sorted, original and counted indices and the second buffers of the radix
    sort for keys and values, 8 bytes each. Strided or broadcast values are copied.
    """
    indices = call.tensors("indices")
    if not call.argument("accumulate") or not indices:
        return ()
    if any(_is_mask(index) for index in indices):
        return () if len(indices) > 1 else _put_by_mask(indices[0], call.tensor("values"))
    target, values = call.tensor("self"), call.tensor("values")
    count = max(index.numel() for index in indices)
    places = zip(target.shape, call.tensor("indices"), strict=False)
    indexed = prod(size for size, index in places if index is not None)
    rows = count * (target.numel() // max(1, indexed))
    dense = values.is_contiguous() and values.numel() == rows
    copies = () if dense else (rows * values.element_size(),)
    if not target.is_contiguous():
        copies = (*copies, tensor_bytes(target))
    # What the sort of linear indices holds, and its second buffers for keys and values.
    return (*copies, *(8 * count,) * 4, 16 * count)


def masked_scatter(call: OperatorCall, _: Card) -> tuple[Step, ...]:
    """IndexKernel.cu `masked_scatter_cuda_impl`: how many elements are selected before each.

    A mask that is broadcast is copied.
    """
    tensor, mask = call.tensor("self"), call.tensor("mask")
    counts = 8 * tensor.numel()
    if mask.shape == tensor.shape and mask.is_contiguous():
        return (Result(0), counts, _SCAN, Freed(1))
    return (Result(0), counts, tensor.numel(), _SCAN, Freed(2))


def masked_scatter_backward(call: OperatorCall, _: Card) -> tuple[Step, ...]:
    """TensorAdvancedIndexing.cpp `masked_scatter_backward_symint`: the gradients that are selected
    are read by index."""
    return (*_places(call.tensor("mask"), prod(call.sizes("sizes"))), Result(0))


def _is_mask(index: torch.Tensor) -> bool:
    return str(index.dtype) in ("torch.bool", "torch.uint8")


def _places(mask: torch.Tensor, count: int) -> tuple[Step, ...]:
    """The places of `count` elements of a mask, which are held until the end."""
    return (*_COUNT, 8 * count * mask.dim(), _SELECT, Freed(3), Freed(0))


def _put_by_mask(mask: torch.Tensor, values: torch.Tensor) -> tuple[Step, ...]:
    """The values are as many rows as the mask has elements; its places are freed before the sort.

    The sort is of one tile up to a few thousand elements, where it needs no second buffers.
    """
    count = values.shape[0] if values.dim() else 1
    return (*_places(mask, count), 8 * count, Freed(2), *(8 * count,) * 3)
