"""The cuBLAS workspaces: blocks of the caching allocator that matrix products need."""

from __future__ import annotations

import torch

from oomdoctor.analysis.simulator.card import WORKSPACES, Card, workspace_bytes
from oomdoctor.package_data import data_of
from oomdoctor.system.environment import variable
from oomdoctor.units import MIB
from oomdoctor.worker.tracing.calls import OperatorCall
from oomdoctor.worker.tracing.steps import Lasting, Passing
from oomdoctor.worker.training.inspection import torch_release

_CUBLAS_OPERATORS: frozenset[str] = frozenset(data_of("operators.toml")["cublas"])
_LT_BYTES = MIB  # CUBLASLT_WORKSPACE_SIZE by default
_LT_WORKSPACES = ("cublasLt", "cublasLt of the autograd thread")


def workspaces_of(call: OperatorCall, card: Card) -> tuple[Lasting | Passing, ...]:
    """The workspaces that an operator needs; none if it does not use cuBLAS.

    Before torch 2.15, the first operator that needs a workspace allocates it, and the process keeps
    it. There are two, because workspaces are kept by (handle, stream), each thread has its own
    handle, and on CUDA the autograd engine has its own thread (CublasHandlePool.cpp,
    `setWorkspaceForHandle`). Recomputation under activation checkpointing also runs in that thread.
    From torch 2.15 on, every call takes one and frees it (pull 194311), unless
    TORCH_CUBLAS_WORKSPACE_CACHE is set.

    With a bias vector, a product uses cuBLASLt (CUDABlas.cpp `gemm_and_bias`). It has its own
    workspace: up to 2.8 for each call, up to 2.10 for each thread, and from 2.15 on instead of
    that of cuBLAS. In between, the two libraries share one (`TORCH_CUBLASLT_UNIFIED_WORKSPACE`).
    """
    schema = getattr(call.func, "_schema", None)
    if schema is None or schema.name not in _CUBLAS_OPERATORS:
        return ()
    release = torch_release()
    with_bias = schema.name == "aten::addmm" and call.tensor("self").dim() == 1
    size = workspace_bytes(card, release, workspace_setting())
    if release >= (2, 15) and not _are_kept():
        if with_bias:
            return (Passing(_LT_WORKSPACES[0], _LT_BYTES),)
        return (Passing(WORKSPACES[0], size),)
    thread = torch._C._current_graph_task_id() != -1
    kept = Lasting(WORKSPACES[thread], size)
    if not with_bias or release >= (2, 11):
        return (kept,)
    kind = Passing if release < (2, 9) else Lasting
    return (kept, kind(_LT_WORKSPACES[thread], _LT_BYTES))


def workspace_setting() -> str:
    """The value of CUBLAS_WORKSPACE_CONFIG; empty if it is not set."""
    return variable("CUBLAS_WORKSPACE_CONFIG") or ""


def _are_kept() -> bool:
    """Whether workspaces are kept where torch would not (`isCUDABlasWorkspaceCachingEnabled`)."""
    return (variable("TORCH_CUBLAS_WORKSPACE_CACHE") or "").lower() in ("1", "true", "t", "y")
