"""Simulate flash_attention_2 and _3 without their packages.

Both packages run the kernel of SDPA's flash backend, so the model is built with "sdpa" and its
attention function is replaced. The same: the output as (batch, length, heads, head dimension), the
log-sum-exp as (batch, heads, length) in fp32, no mask, grouped queries without repeated keys, and
the accumulators of the backward pass (PyTorch's kernel was taken from flash-attn 2). Not the same:
FlashAttention 3 accumulates dK and dV of grouped queries in fp32 per key head, not in 16 bits per
query head. That takes less memory with three or more query heads per key head.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from dataclasses import replace

import torch

from oomdoctor.records.configuration.config import TrainConfig
from oomdoctor.records.facts.attention import ATTENTIONS
from oomdoctor.worker.protocol import UnsupportedError
from oomdoctor.worker.replacing import module_if_there, restored
from oomdoctor.worker.simulating.cuda.attention import Call, pad_last, run


def built_as(config: TrainConfig) -> TrainConfig:
    """The rung to build: sdpa stands in for a package, whose kernels then replace sdpa's.

    Raises:
        UnsupportedError: the package would take padding out of the rows first.
    """
    stand_in = ATTENTIONS[config.attention].stand_in
    if stand_in is None:
        return config
    if config.padding != "none":
        raise UnsupportedError(
            f"{config.attention} takes the padding out before its kernel, which is not simulated; "
            "leave out padding, for which this attention needs no mask, or use sdpa"
        )
    return replace(config, attention=stand_in)


@contextlib.contextmanager
def simulated_attention() -> Iterator[None]:
    """Make models with the implementation "sdpa" act as with one of the packages.

    This works for models that use transformers' AttentionInterface (4.48 and later).
    """
    from transformers import modeling_utils

    # Set as an entry: libraries replace sdpa in this way too, which hides what is registered.
    functions = modeling_utils.ALL_ATTENTION_FUNCTIONS
    original = functions["sdpa"]
    functions["sdpa"] = _forward
    try:
        with _masks_of_the_packages():
            yield
    finally:
        functions["sdpa"] = original


def _masks_of_the_packages() -> contextlib.AbstractContextManager[None]:
    """Build no mask, as for the packages; with a sliding window sdpa has one (from 4.53 on)."""
    masks = module_if_there("transformers.masking_utils")
    if masks is None:
        return contextlib.nullcontext()
    makers = masks.ALL_MASK_ATTENTION_FUNCTIONS._global_mapping
    return restored(makers, {"sdpa": masks.flash_attention_mask})


def _forward(
    module: torch.nn.Module,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attention_mask: torch.Tensor | None,
    dropout: float = 0.0,
    scaling: float | None = None,
    is_causal: bool | None = None,
    cu_seq_lens_q: torch.Tensor | None = None,
    max_length_q: int | None = None,
    **_: object,
) -> tuple[torch.Tensor, None]:
    """transformers integrations/flash_attention.py; inputs are (batch, heads, length, size).

    `cu_seq_lens_q` are the borders of documents, of which the longest has `max_length_q` tokens.
    """
    if query.dtype == torch.float32:
        # Norms that peft keeps in fp32 make fp32 queries; then the dtype of the weights counts.
        weights = [p.dtype for p in module.parameters() if p.is_floating_point()]
        halves = [dtype for dtype in weights if dtype != torch.float32]
        autocast = torch.is_autocast_enabled("cpu")
        dtype = torch.get_autocast_dtype("cpu") if autocast else next(iter(halves), torch.bfloat16)
        query, key, value = query.to(dtype), key.to(dtype), value.to(dtype)
    causal = bool(getattr(module, "is_causal", True) if is_causal is None else is_causal)
    if cu_seq_lens_q is not None and max_length_q is not None:
        tensors = (query, key, value)
        return _of_documents(tensors, cu_seq_lens_q, max_length_q, dropout, causal, scaling), None
    grouped = key.shape[1] != query.shape[1]
    call = Call(query, key, value, None, dropout, causal, scaling, grouped)
    return run("flash", call).transpose(1, 2), None


def _of_documents(
    tensors: tuple[torch.Tensor, torch.Tensor, torch.Tensor],
    borders: torch.Tensor,
    longest: int,
    dropout: float,
    causal: bool,
    scaling: float | None,
) -> torch.Tensor:
    """`flash_attn_varlen_func` on a row of documents, which are (tokens, heads, size) to it."""
    query, key, value = (
        tensor.transpose(1, 2).reshape(-1, tensor.shape[1], tensor.shape[3]) for tensor in tensors
    )
    size = query.shape[-1]
    scale = scaling if scaling is not None else size**-0.5
    query, key, value = (pad_last(tensor, 8) for tensor in (query, key, value))
    out = torch.ops.aten._flash_attention_forward(
        query, key, value, borders, borders, longest, longest, dropout, causal, False, scale=scale
    )[0]
    return out[..., :size].view(tensors[0].shape[0], -1, *out[..., :size].shape[-2:])
