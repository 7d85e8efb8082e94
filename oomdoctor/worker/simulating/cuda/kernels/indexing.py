"""What kernels hold that read or write by index: embeddings, gathers and scatters."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch

from oomdoctor.analysis.simulator.card import Card
from oomdoctor.worker.simulating.cuda.kernels.blocks import is_flat, scratch, tensor_bytes
from oomdoctor.worker.tracing.steps import Freed, Result, Step


def embedding(named: Mapping[str, Any], _: Card) -> tuple[Step, ...]:
    """Embedding.cpp `embedding_symint`: `reshape(-1)` copies indices that are no flat memory."""
    indices = named["indices"]
    return () if is_flat(indices) else (tensor_bytes(indices), Result(0))


def embedding_backward(named: Mapping[str, Any], _: Card) -> tuple[Step, ...]:
    """Embedding.cu `embedding_dense_backward_cuda`, EmbeddingBackwardKernel.cu (torch 1.11-2.13).

    Up to 3,072 tokens (`SORTED_ROWS`), one kernel works in place. Above that, the indices are
    sorted and cut into segments. Each segment is summed in parts of ten rows, and one fp32 row is
    kept for each part; how many there are at most is known without reading them. What the sort and
    the scans take for themselves is left out: except for the sort, it is a few KiB.
    """
    grad, indices = named["grad_output"], named["indices"]
    copies = [tensor_bytes(tensor) for tensor in (grad, indices) if not tensor.is_contiguous()]
    tokens, index = indices.numel(), tensor_bytes(indices)
    row = grad.shape[-1] * max(4, grad.element_size())
    segments = named["num_weights"]
    # Where they are sorted in any case, there may be less, but never more.
    rows = 0 if named["scale_grad_by_freq"] else tokens
    partial = {"rows": rows, "segments": segments if rows else 0}
    sorted_indices, order, positions = (scratch(index, rows=rows) for _ in range(3))
    begins, keys, parts, offsets = (scratch(index, rows=rows) for _ in range(4))
    first = len(copies)
    return (
        *copies,
        *(sorted_indices, order, positions, Freed(first + 2), Result(0)),
        *(begins, scratch(8, rows=rows), keys, Freed(first + 5), parts, offsets),
        *(scratch(8, rows=rows), scratch(index, **partial), scratch(tokens * row, **partial)),
    )


_COUNT = (4, 1, Freed(1))  # the number of elements that a mask selects, and what the sum takes
_SCAN = 1279  # what DeviceScan takes for a few thousand elements
_SELECT = 1023  # what DeviceSelect takes for up to a few thousand elements


def nonzero(named: Mapping[str, Any], _: Card) -> tuple[Step, ...]:
    """Nonzero.cu `nonzero_cuda_out_impl`: the elements are counted, then selected."""
    return (*_COUNT, Result(0), _SELECT, Freed(2))


def index(named: Mapping[str, Any], _: Card) -> tuple[Step, ...]:
    """TensorAdvancedIndexing.cpp `AdvancedIndex`: on CUDA all indices get the same strides.

    A mask becomes the places of its elements (`expandTensors`).
    """
    indices = [index for index in named["indices"] if index is not None]
    if any(_is_mask(index) for index in indices):
        (mask, *others), result = indices, named["result"]
        return () if others else (*_places(mask, result.shape[0]), Result(0))
    if len(indices) < 2:
        return ()
    alike = torch.broadcast_tensors(*indices)
    if len({index.stride() for index in alike}) == 1:
        return ()
    return (*(tensor_bytes(index) for index in alike if not index.is_contiguous()), Result(0))


def index_put(named: Mapping[str, Any], _: Card) -> tuple[Step, ...]:
    """Indexing.cu `index_put_with_sort_kernel`, used when values are accumulated (torch 2.0-2.13).

    It allocates linear, sorted, original and counted indices and the second buffers of the radix
    sort for keys and values, 8 bytes each. Strided or broadcast values are copied.
    """
    indices = [index for index in named["indices"] if index is not None]
    if not named["accumulate"] or not indices:
        return ()
    if any(_is_mask(index) for index in indices):
        return () if len(indices) > 1 else _put_by_mask(indices[0], named["values"])
    target, values = named["self"], named["values"]
    count = max(index.numel() for index in indices)
    indexed = 1
    for size, index in zip(target.shape, named["indices"], strict=False):
        indexed *= size if index is not None else 1
    rows = count * (target.numel() // max(1, indexed))
    dense = values.is_contiguous() and values.numel() == rows
    copies = () if dense else (rows * values.element_size(),)
    if not target.is_contiguous():
        copies = (*copies, tensor_bytes(target))
    return (*copies, *_sorted(count))


def masked_scatter(named: Mapping[str, Any], _: Card) -> tuple[Step, ...]:
    """IndexKernel.cu `masked_scatter_cuda_impl`: how many elements are selected before each.

    A mask that is broadcast is copied.
    """
    tensor, mask = named["self"], named["mask"]
    counts = 8 * tensor.numel()
    if mask.shape == tensor.shape and mask.is_contiguous():
        return (Result(0), counts, _SCAN, Freed(1))
    return (Result(0), counts, tensor.numel(), _SCAN, Freed(2))


def masked_scatter_backward(named: Mapping[str, Any], _: Card) -> tuple[Step, ...]:
    """TensorAdvancedIndexing.cpp `masked_scatter_backward_symint`: the gradients that are selected
    are read by index."""
    count = 1
    for size in named["sizes"]:
        count *= size
    return (*_places(named["mask"], count), Result(0))


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


def _sorted(count: int) -> tuple[Step, ...]:
    """What the sort of linear indices holds, and its second buffers for keys and values."""
    return (*(8 * count,) * 4, 16 * count)
