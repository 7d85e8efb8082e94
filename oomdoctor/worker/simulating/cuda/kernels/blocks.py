"""Blocks that a kernel holds, and bytes of tensors."""

from __future__ import annotations

from itertools import pairwise

import torch

from oomdoctor.analysis.simulator.reductions import RowSum


class Scratch(int):
    """Bytes of a block that a kernel holds, with what `TapeBlock` says of them."""

    rows: int
    segments: int
    row_sum: RowSum | None

    def __new__(
        cls, size: int, rows: int = 0, segments: int = 0, row_sum: RowSum | None = None
    ) -> Scratch:
        block = super().__new__(cls, size)
        block.rows, block.segments, block.row_sum = rows, segments, row_sum
        return block


def tensor_bytes(tensor: torch.Tensor) -> int:
    """Bytes of a dense copy."""
    return int(tensor.numel() * tensor.element_size())


def is_flat(tensor: torch.Tensor) -> bool:
    """Whether a view with one dimension shows the same elements (`reshape` then copies nothing)."""
    sizes, strides = tensor.shape, tensor.stride()
    kept = [(size, stride) for size, stride in zip(sizes, strides, strict=True) if size != 1]
    return all(outer == size * stride for (_, outer), (size, stride) in pairwise(kept))
