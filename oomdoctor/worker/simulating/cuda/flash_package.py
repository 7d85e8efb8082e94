"""flash_attention_2 and _3 without their packages, as the tensors they would leave.

Both packages run the kernel that SDPA's flash backend runs, so the model is built with "sdpa" and
its attention function is exchanged. The same: output in (batch, length, heads, head dimension),
log-sum-exp (batch, heads, length) in fp32, no mask, grouped queries without repeated keys, the
backward's accumulators (flash-attn 2 is what PyTorch's kernel was taken from). Not the same:
FlashAttention 3 gathers dK and dV of grouped queries in fp32 by key head instead of in 16 bits by
query head, which is less from three query heads a key head on.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any
from unittest import mock

from oomdoctor.worker.simulating.cuda.attention import Call, run


@contextlib.contextmanager
def simulated_attention() -> Iterator[None]:
    """Models with the implementation "sdpa" act as with one of the packages here.

    For models that ask transformers' AttentionInterface (4.48 and later).
    """
    from transformers import modeling_utils

    functions = modeling_utils.ALL_ATTENTION_FUNCTIONS
    replaced = functions["sdpa"]
    functions["sdpa"] = _forward
    try:
        with _masks_of_the_packages():
            yield
    finally:
        functions["sdpa"] = replaced


@contextlib.contextmanager
def _masks_of_the_packages() -> Iterator[None]:
    """The packages take no mask, also where a sliding window would make sdpa's (from 4.53 on)."""
    try:
        from transformers import masking_utils
    except ImportError:
        yield
        return
    makers = masking_utils.ALL_MASK_ATTENTION_FUNCTIONS._global_mapping
    with mock.patch.dict(makers, {"sdpa": masking_utils.flash_attention_mask}):
        yield


def _forward(
    module: Any,
    query: Any,
    key: Any,
    value: Any,
    attention_mask: Any,
    dropout: float = 0.0,
    scaling: float | None = None,
    is_causal: bool | None = None,
    **_: Any,
) -> tuple[Any, None]:
    """transformers integrations/flash_attention.py; inputs are (batch, heads, length, size)."""
    import torch

    if query.dtype == torch.float32:
        # Norms that peft keeps in fp32 make fp32 queries; the weights' dtype is what counts then.
        weights = [p.dtype for p in module.parameters() if p.is_floating_point()]
        halves = [dtype for dtype in weights if dtype != torch.float32]
        autocast = torch.is_autocast_enabled("cpu")
        dtype = torch.get_autocast_dtype("cpu") if autocast else next(iter(halves), torch.bfloat16)
        query, key, value = query.to(dtype), key.to(dtype), value.to(dtype)
    causal = bool(getattr(module, "is_causal", True) if is_causal is None else is_causal)
    grouped = key.shape[1] != query.shape[1]
    call = Call(query, key, value, None, dropout, causal, scaling, grouped)
    return run("flash", call).transpose(1, 2), None
