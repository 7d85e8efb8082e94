"""The statistics of layer_norm, which CUDA keeps in fp32 for half precision; the CPU does not.

layer_norm_kernel.cu `layer_norm_cuda` makes them of the accumulation type (torch 1.8-2.13).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import torch

_as_on_cuda = False


@contextmanager
def cuda_statistics() -> Iterator[None]:
    """Let `normalized` answer, in the whole process."""
    global _as_on_cuda
    before, _as_on_cuda = _as_on_cuda, True
    try:
        yield
    finally:
        _as_on_cuda = before


def normalized(args: Sequence[Any]) -> tuple[torch.Tensor, ...] | None:
    """The results of `aten::native_layer_norm` as on CUDA; None if the CPU's are the same."""
    import torch

    tensor, dims = args[0], len(args[1])
    if not _as_on_cuda or tensor.dtype not in (torch.float16, torch.bfloat16):
        return None
    rows = (*tensor.shape[: tensor.dim() - dims], *(1,) * dims)
    mean, deviation = (tensor.new_empty(rows, dtype=torch.float32) for _ in range(2))
    return tensor.new_empty(tensor.shape), mean, deviation
