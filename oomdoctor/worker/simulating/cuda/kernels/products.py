"""What matrix products hold beside the workspaces of cuBLAS (`workspaces`)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from oomdoctor.analysis.simulator.card import Card
from oomdoctor.worker.simulating.cuda.kernels.blocks import tensor_bytes
from oomdoctor.worker.tracing.steps import Step

if TYPE_CHECKING:
    import torch


def matmul(named: Mapping[str, Any], _: Card) -> tuple[Step, ...]:
    """cuBlasCommonArgs.h `prepare_matrix_for_cublas`, Blas.cpp: operands that are copied first."""
    operands = [
        named[name] for name in ("self", "mat1", "mat2", "batch1", "batch2") if name in named
    ]
    return tuple(tensor_bytes(operand) for operand in operands[-2:] if not _fits_cublas(operand))


def _fits_cublas(matrix: torch.Tensor) -> bool:
    if matrix.dim() < 2:
        return True
    (rows, columns), (down, across) = matrix.shape[-2:], matrix.stride()[-2:]
    row_major = across == 1 and down >= max(1, columns)
    column_major = down == 1 and across >= max(1, rows)
    return bool(row_major or column_major or rows == 1 or columns == 1)
