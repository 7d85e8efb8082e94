"""What kernels hold that read or write by index: embeddings, gathers and scatters."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

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


def index(named: Mapping[str, Any], _: Card) -> tuple[Step, ...]:
    """TensorAdvancedIndexing.cpp `AdvancedIndex`: on CUDA all indices get the same strides."""
    import torch

    indices = [index for index in named["indices"] if index is not None]
    if len(indices) < 2 or any(index.dtype in (torch.bool, torch.uint8) for index in indices):
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
    if not named["accumulate"] or not indices or any(str(i.dtype) == "torch.bool" for i in indices):
        return ()
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
    return (*copies, *(8 * count,) * 4, 16 * count)
