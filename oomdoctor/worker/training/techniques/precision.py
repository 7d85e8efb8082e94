"""In which precision PyTorch makes products of float32: in full, or in TF32 where the card has it.

torch 2.9 has a second setting for it. Asking for the first one fails once the second was set alone;
the function that sets both is the first one's.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch

from oomdoctor.worker.training.setup import Setup


def allow_tf32(_: Setup) -> None:
    """Let products of float32 run in TF32 from now on. Devices without TF32 ignore it.

    The Trainer's own setting raises there.
    """
    torch.set_float32_matmul_precision("high")


def allows_tf32() -> bool:
    """Whether products of float32 on CUDA may run in TF32."""
    products = torch.backends.cuda.matmul
    if hasattr(products, "fp32_precision"):
        return bool(products.fp32_precision == "tf32")
    return bool(products.allow_tf32)


@contextmanager
def kept_precision() -> Iterator[None]:
    """Restore the precision at the end."""
    before = torch.get_float32_matmul_precision()
    try:
        yield
    finally:
        torch.set_float32_matmul_precision(before)
