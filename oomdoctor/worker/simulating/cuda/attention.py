"""Send `scaled_dot_product_attention` on fake CPU tensors to the kernel that CUDA would choose.

`choices` makes the choice. The preparation of the inputs follows attention.cpp of torch
2.6-2.13. The meta kernel and the autograd formula of the chosen operator then put CUDA's outputs,
log-sum-exp and gradients into the trace. `attention_kernels` has what backward kernels hold
internally.

flash_attention_2 and _3 are simulated without their packages. Both run the kernel of SDPA's flash
backend, so the model is built with "sdpa" and its attention function is replaced. The same: the
output as (batch, length, heads, head dimension), the log-sum-exp as (batch, heads, length) in fp32,
no mask, grouped queries without repeated keys, and the accumulators of the backward pass (PyTorch's
kernel was taken from flash-attn 2). Not the same: FlashAttention 3 accumulates dK and dV of grouped
queries in fp32 per key head, not in 16 bits per query head. That takes less memory with three or
more query heads per key head.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, replace
from typing import Literal

import torch
from torch._ops import OpOverload

from oomdoctor.records.configuration.config import TrainConfig
from oomdoctor.records.facts.attention import ATTENTIONS
from oomdoctor.worker.protocol import UnsupportedError
from oomdoctor.worker.replacing import implemented, module_if_there, restored
from oomdoctor.worker.tracing.calls import Answering, Kinds

Backend = Literal["cudnn", "flash", "efficient", "math"]
_ADDITIVE = "_oomdoctor_additive"  # the mask that calls share, at the memory of a bool one


@dataclass(frozen=True, slots=True)
class Call:
    """One call: query, key and value are (batch, heads, length, head dimension)."""

    query: torch.Tensor
    key: torch.Tensor
    value: torch.Tensor
    mask: torch.Tensor | None = None
    dropout: float = 0.0
    is_causal: bool = False
    scale: float | None = None
    grouped: bool = False

    @property
    def needs_grad(self) -> bool:
        tensors = (self.query, self.key, self.value)
        return torch.is_grad_enabled() and any(tensor.requires_grad for tensor in tensors)


def cuda_sdpa(choose: Callable[[Call], Backend]) -> AbstractContextManager[None]:
    """A context in which attention on CPU tensors runs with the kernel that `choose` returns.

    It is registered below autocast, which has cast the inputs by then, as on CUDA. It is also
    registered beside autograd, so it catches calls from C++, from a recomputed forward pass and
    without gradients.
    """

    def attend(
        query: torch.Tensor,
        key: torch.Tensor,
        value: torch.Tensor,
        attn_mask: torch.Tensor | None = None,
        dropout_p: float = 0.0,
        is_causal: bool = False,
        *,
        scale: float | None = None,
        enable_gqa: bool = False,
    ) -> torch.Tensor:
        call = Call(query, key, value, attn_mask, dropout_p, is_causal, scale, enable_gqa)
        return _run(choose(call), call)

    return implemented({"scaled_dot_product_attention": attend}, "AutogradCPU")


def _run(backend: Backend, call: Call) -> torch.Tensor:
    """attention.cpp `scaled_dot_product_attention`, after the backend is chosen."""
    kernels = {"flash": _flash, "math": _math, "cudnn": _cudnn, "efficient": _efficient}
    return kernels[backend](call)


def _flash(call: Call) -> torch.Tensor:
    """Pad head dimensions to a multiple of 8 outside the kernel, and cut the result."""
    size = call.query.shape[-1]
    padded = [_padded(tensor) for tensor in (call.query, call.key, call.value)]
    scale = call.scale if call.scale is not None else size**-0.5
    results = torch.ops.aten._scaled_dot_product_flash_attention(
        *padded, call.dropout, call.is_causal, False, scale=scale
    )
    return results[0] if padded[0] is call.query else results[0][..., :size]


def _efficient(call: Call) -> torch.Tensor:
    mask = _additive_mask(call)
    if mask is not None:
        mask = _aligned(mask).expand(*call.query.shape[:3], call.key.shape[2])
    return _fused(torch.ops.aten._scaled_dot_product_efficient_attention, call, mask)


def _aligned(mask: torch.Tensor) -> torch.Tensor:
    """`preprocess_mask`: rows must be aligned to 8 elements, else the mask is copied and padded."""
    if all(stride % 8 == 0 for stride in mask.stride()[:-1]) and mask.stride(-1) == 1:
        return mask
    length = mask.shape[-1]
    return torch.nn.functional.pad(mask, (0, 8 - length % 8))[..., :length]


def _cudnn(call: Call) -> torch.Tensor:
    operator = torch.ops.aten._scaled_dot_product_cudnn_attention
    return _fused(operator, call, _additive_mask(call), False)


def _fused(
    operator: Callable[..., Sequence[torch.Tensor]],
    call: Call,
    mask: torch.Tensor | None,
    *more: bool,
) -> torch.Tensor:
    given = (call.query, call.key, call.value, mask, call.needs_grad, call.dropout, call.is_causal)
    return operator(*given, *more, scale=call.scale)[0]


def _math(call: Call) -> torch.Tensor:
    operator = torch.ops.aten._scaled_dot_product_attention_math
    with _mask_added_in_place(call):
        given = (call.query, call.key, call.value, _additive_mask(call), call.dropout)
        more = {"scale": call.scale, "enable_gqa": call.grouped}
        return operator(*given, call.is_causal, None, **more)[0]


def _mask_added_in_place(call: Call) -> AbstractContextManager[object]:
    """attention.cpp adds the mask to the scores in place, but not for fake tensors.

    The result shares the memory of the scores.
    """
    aten = torch.ops.aten
    scores = (*call.query.shape[:-1], call.key.shape[-2])

    def in_place(
        func: OpOverload, _: Kinds, args: Sequence[torch.Tensor], kwargs: Mapping[str, object]
    ) -> object:
        if func is aten.add.Tensor and args[0].shape == scores:
            return aten.detach.default(aten.add_.Tensor(*args, **kwargs))
        return func(*args, **kwargs)

    return Answering(in_place)


def share_additive(mask: torch.Tensor, dtype: torch.dtype) -> None:
    """Make the additive mask of a bool one now; calls with queries of this dtype share it."""
    setattr(mask.untyped_storage(), _ADDITIVE, _aligned(_as_additive(mask, dtype)))


def _additive_mask(call: Call) -> torch.Tensor | None:
    """`convert_boolean_attn_mask`: a bool mask gets the query's dtype and keeps its shape."""
    mask, dtype = call.mask, call.query.dtype
    if mask is None or mask.dtype != torch.bool:
        return mask
    shared: torch.Tensor | None = getattr(mask.untyped_storage(), _ADDITIVE, None)
    if shared is not None and shared.shape == mask.shape and shared.dtype == dtype:
        return shared
    return _as_additive(mask, dtype)


def _as_additive(mask: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    return torch.where(mask, 0.0, torch.scalar_tensor(float("-inf"), dtype=dtype))


def _padded(tensor: torch.Tensor) -> torch.Tensor:
    """The tensor with zeros up to a multiple of 8 in its last dimension, if it is none."""
    short = -tensor.shape[-1] % 8
    return torch.nn.functional.pad(tensor, (0, short)) if short else tensor


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


@contextmanager
def simulated_packages() -> Iterator[None]:
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


def _masks_of_the_packages() -> AbstractContextManager[None]:
    """Build no mask, as for the packages; with a sliding window sdpa has one (from 4.53 on)."""
    masks = module_if_there("transformers.masking_utils")
    if masks is None:
        return nullcontext()
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
    return _run("flash", call).transpose(1, 2), None


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
    query, key, value = (_padded(tensor) for tensor in (query, key, value))
    out = torch.ops.aten._flash_attention_forward(
        query, key, value, borders, borders, longest, longest, dropout, causal, False, scale=scale
    )[0]
    return out[..., :size].view(tensors[0].shape[0], -1, *out[..., :size].shape[-2:])
