"""The cuBLAS workspaces, which stay in the caching allocator until the process ends."""

from __future__ import annotations

import os
from functools import cache
from typing import TYPE_CHECKING

from oomdoctor.analysis.simulator.card import WORKSPACES, Card, workspace_bytes
from oomdoctor.worker.simulating.cuda.release import torch_release

if TYPE_CHECKING:
    from torch._ops import OpOverload

_CUBLAS_OPERATORS = frozenset(
    {
        *(
            f"aten::{name}"
            for name in ("mm", "addmm", "bmm", "baddbmm", "addbmm", "mv", "addmv", "dot", "vdot")
        ),
        "aten::linear",
        "aten::_addmm_activation",
        "aten::_int_mm",
        "aten::_scaled_mm",
        "bitsandbytes::gemm_4bit",
    }
)


def workspace_name(func: OpOverload) -> str | None:
    """The name of the cuBLAS workspace that `func` needs; None if it does not use cuBLAS.

    The first operator that needs a workspace allocates it, and the process keeps it. There are two
    names, because workspaces are kept by (handle, stream), each thread has its own handle, and on
    CUDA the autograd engine has its own thread (CublasHandlePool.cpp, `setWorkspaceForHandle`,
    torch 2.0-2.13). Recomputation under activation checkpointing also runs in that thread. cuBLASLt
    shares the same block (`TORCH_CUBLASLT_UNIFIED_WORKSPACE`); before torch 2.11 it had a separate
    1 MiB, see `kernels`.
    """
    if not _uses_cublas(func):
        return None
    import torch

    return WORKSPACES[torch._C._current_graph_task_id() != -1]


def workspace_size(card: Card) -> int:
    """Bytes of a cuBLAS workspace on a card."""
    return workspace_bytes(card, torch_release(), workspace_setting())


@cache
def _uses_cublas(func: OpOverload) -> bool:
    schema = getattr(func, "_schema", None)
    return schema is not None and schema.name in _CUBLAS_OPERATORS


def workspace_setting() -> str:
    """The value of CUBLAS_WORKSPACE_CONFIG; empty if it is not set."""
    return os.environ.get("CUBLAS_WORKSPACE_CONFIG", "")
