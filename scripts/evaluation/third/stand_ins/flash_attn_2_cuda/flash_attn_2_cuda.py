"""The kernels of flash-attn 2.8.3, which only nvcc builds: they allocate, and compute nothing.

What is allocated is that of `mha_varlen_fwd` and `mha_varlen_bwd` of csrc/flash_attn/flash_api.cpp,
in their order, for heads of a multiple of 8 and without `deterministic`. flash-attn's own Python
code calls them, and allocates the gradients.
"""

from __future__ import annotations

import torch

_BETWEEN = 128  # rows between two sequences, so that no block reaches into the next one


def varlen_fwd(q, k, v, out, lengths_q, lengths_k, *settings):
    total, heads, width = q.shape
    if width % 8:
        raise NotImplementedError
    out = torch.empty_like(q) if out is None else out
    scores = torch.empty(heads, total, dtype=torch.float32, device=q.device)
    picture = torch.empty(0, dtype=q.dtype, device=q.device)
    return out, scores, picture, torch.empty(2, dtype=torch.int64, device=q.device)


def varlen_bwd(dout, q, k, v, out, scores, dq, dk, dv, lengths_q, lengths_k, *settings):
    deterministic = settings[-3]
    total, heads, width = q.shape
    if deterministic or width % 8:
        raise NotImplementedError
    rows = total + _BETWEEN * (lengths_q.numel() - 1)
    rounded = -(-width // 32) * 32 if width <= 192 else 256
    sums = torch.empty(heads, rows, dtype=torch.float32, device=q.device)
    gathered = torch.empty(rows, heads, rounded, dtype=torch.float32, device=q.device)
    groups = heads // k.shape[1]
    if groups > 1:
        whole = [torch.empty(len(k), heads, width, dtype=q.dtype, device=q.device) for _ in "kv"]
        for gradient, expanded in zip((dk, dv), whole, strict=True):
            parts = expanded.reshape(len(k), k.shape[1], groups, width)
            torch.sum(parts, 2, out=gradient)
    del gathered
    return dq, dk, dv, sums


def fwd(*_, **settings):
    raise NotImplementedError


bwd = fwd_kvcache = fwd
