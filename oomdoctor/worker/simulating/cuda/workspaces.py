"""The cuBLAS workspaces, which stay in the caching allocator until the process ends."""

from __future__ import annotations

import os
import re
from typing import TYPE_CHECKING

from oomdoctor.worker.simulating.cuda.card import Card, torch_release

if TYPE_CHECKING:
    from torch._ops import OpOverload

MIB = 1024**2
WORKSPACES = ("cublas", "cublas of the autograd thread")  # forward pass, backward pass
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


def lasting_workspace(func: OpOverload, card: Card) -> tuple[str, int] | None:
    """The cuBLAS workspace that `func` needs: its name and bytes; None if it does not use cuBLAS.

    The first operator that needs a workspace allocates it, and the process keeps it. There are two
    names, because workspaces are kept by (handle, stream), each thread has its own handle, and on
    CUDA the autograd engine has its own thread (CublasHandlePool.cpp, `setWorkspaceForHandle`,
    torch 2.0-2.13). Recomputation under activation checkpointing also runs in that thread. cuBLASLt
    shares the same block (`TORCH_CUBLASLT_UNIFIED_WORKSPACE`); before torch 2.11 it had a separate
    1 MiB, see `kernels`.
    """
    schema = getattr(func, "_schema", None)
    if schema is None or schema.name not in _CUBLAS_OPERATORS:
        return None
    import torch

    in_backward = torch._C._current_graph_task_id() != -1
    return WORKSPACES[in_backward], workspace_bytes(card)


def workspace_bytes(card: Card) -> int:
    """Bytes of one cuBLAS workspace (CublasHandlePool.cpp, `parseChosenWorkspaceSize`).

    `CUBLAS_WORKSPACE_CONFIG` decides if it is set. The default is :4096:2:16:8, which is 8,519,680
    bytes. It is 32 MiB on Hopper and, from torch 2.12, on Blackwell (pull 175344).
    """
    pools = re.findall(r":([0-9]+):([0-9]+)", os.environ.get("CUBLAS_WORKSPACE_CONFIG", ""))
    if pools:
        return sum(int(kib) * int(count) for kib, count in pools) * 1024
    major = card.compute_capability[0]
    large = (9,) if torch_release() < (2, 12) else (9, 10, 12)
    return 32 * MIB if major in large else (2 * 4096 + 8 * 16) * 1024
