"""Send `scaled_dot_product_attention` on fake CPU tensors to the kernel that CUDA would choose.

`choices` makes the choice. The preparation of the inputs follows attention.cpp of torch
2.6-2.13. The meta kernel and the autograd formula of the chosen operator then put CUDA's outputs,
log-sum-exp and gradients into the trace. `kernels.attention_kernels` has what backward
kernels hold internally.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Literal

import torch
from torch._ops import OpOverload

from oomdoctor.worker.simulating.registering import implemented
from oomdoctor.worker.tracing.calls import Answering, Kinds

Backend = Literal["cudnn", "flash", "efficient", "math"]


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
        return run(choose(call), call)

    return implemented({"scaled_dot_product_attention": attend}, "AutogradCPU")


def run(backend: Backend, call: Call) -> torch.Tensor:
    """attention.cpp `scaled_dot_product_attention`, after the backend is chosen."""
    kernels = {"flash": _flash, "math": _math, "cudnn": _cudnn, "efficient": _efficient}
    return kernels[backend](call)


def _flash(call: Call) -> torch.Tensor:
    """Pad head dimensions to a multiple of 8 outside the kernel, and cut the result."""
    size = call.query.shape[-1]
    padded = [pad_last(tensor, 8) for tensor in (call.query, call.key, call.value)]
    scale = call.scale if call.scale is not None else size**-0.5
    results = torch.ops.aten._scaled_dot_product_flash_attention(
        *padded, call.dropout, call.is_causal, False, scale=scale
    )
    return results[0] if padded[0] is call.query else results[0][..., :size]


def _efficient(call: Call) -> torch.Tensor:
    mask = _additive_mask(call)
    if mask is not None:
        # `preprocess_mask`: rows must be aligned to 8 elements, else the mask is copied and padded.
        aligned = all(stride % 8 == 0 for stride in mask.stride()[:-1]) and mask.stride(-1) == 1
        if not aligned:
            length = mask.shape[-1]
            mask = torch.nn.functional.pad(mask, (0, 8 - length % 8))[..., :length]
        mask = mask.expand(*call.query.shape[:3], call.key.shape[2])
    return _fused(torch.ops.aten._scaled_dot_product_efficient_attention, call, mask)


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


def _additive_mask(call: Call) -> torch.Tensor | None:
    """`convert_boolean_attn_mask`: a bool mask gets the query's dtype and keeps its shape."""
    if call.mask is None or call.mask.dtype != torch.bool:
        return call.mask
    masked = torch.scalar_tensor(float("-inf"), dtype=call.query.dtype)
    return torch.where(call.mask, 0.0, masked)


def pad_last(tensor: torch.Tensor, multiple: int) -> torch.Tensor:
    """The tensor with zeros up to a multiple of the last dimension, if it is none."""
    short = -tensor.shape[-1] % multiple
    return torch.nn.functional.pad(tensor, (0, short)) if short else tensor
