"""Dropout as on CUDA, which keeps a mask of one byte per element; the CPU keeps noise instead.

In training, ATen/native/Dropout.cpp calls `native_dropout` if `is_fused_kernel_acceptable` (CUDA, a
rate between 0 and 1, a tensor with elements).
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import torch


@contextmanager
def cuda_dropout() -> Iterator[None]:
    """Make `dropout` on CPU tensors work as on CUDA, in the whole process."""
    import torch

    def dropout(tensor: torch.Tensor, rate: float, train: bool) -> torch.Tensor:
        if not train or rate == 0.0 or tensor.numel() == 0:
            return tensor
        if rate == 1.0:
            return tensor * 0.0
        return torch.ops.aten.native_dropout(tensor, rate, True)[0]

    library = torch.library.Library("aten", "IMPL")
    library.impl("dropout", dropout, "AutogradCPU")
    try:
        yield
    finally:
        library._destroy()
