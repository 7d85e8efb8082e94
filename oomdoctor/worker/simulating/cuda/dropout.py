"""Dropout as CUDA keeps it: a mask of one byte an element, where the CPU keeps noise in its type.

ATen/native/Dropout.cpp sends training to `native_dropout` where `is_fused_kernel_acceptable` (CUDA,
a rate between 0 and 1, something to drop).
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any


@contextmanager
def cuda_dropout() -> Iterator[None]:
    """Within it `dropout` on (fake) CPU tensors goes CUDA's way, in the whole process."""
    import torch

    def dropout(tensor: Any, rate: float, train: bool) -> Any:
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
