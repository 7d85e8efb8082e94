"""Send `scaled_dot_product_attention` on fake CPU tensors to the kernel that CUDA would choose.

The choice and the preparation of the inputs follow sdp_utils.cpp, sdp_utils_cpp.h and
attention.cpp of torch 2.6-2.13. The meta kernel and the autograd formula of the chosen operator
then put CUDA's outputs, log-sum-exp and gradients into the trace. `attention_scratch` has the
memory that the backward kernels take internally.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from oomdoctor.worker.simulating.cuda.kernels import Card, torch_release

if TYPE_CHECKING:
    import torch

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
        import torch

        tensors = (self.query, self.key, self.value)
        return torch.is_grad_enabled() and any(tensor.requires_grad for tensor in tensors)


@contextlib.contextmanager
def cuda_sdpa(choose: Callable[[Call], Backend]) -> Iterator[None]:
    """Run attention on CPU tensors with the kernel that `choose` returns for each call.

    It is registered below autocast, which has cast the inputs by then, as on CUDA. It is also
    registered beside autograd, so it catches calls from C++, from a recomputed forward pass and
    without gradients.
    """
    import torch

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

    library = torch.library.Library("aten", "IMPL")
    library.impl("scaled_dot_product_attention", attend, "AutogradCPU")
    try:
        yield
    finally:
        library._destroy()


def choose_backend(call: Call, card: Card) -> Backend:
    """sdp_utils.cpp `select_sdp_backend`: the first backend by priority that accepts the call.

    The switches of `torch.backends.cuda` apply, as on CUDA.
    """
    from torch.backends import cuda

    if _fits_any_fused_kernel(call):
        # By default cuDNN comes after math, so it is either first or never reached.
        if cuda.cudnn_sdp_enabled() and _prefers_cudnn(card) and _fits_cudnn(call):
            return "cudnn"
        if cuda.flash_sdp_enabled() and _fits_flash(call, card):
            return "flash"
        if cuda.mem_efficient_sdp_enabled() and _fits_efficient(call, card):
            return "efficient"
    return "math"


def run(backend: Backend, call: Call) -> torch.Tensor:
    """attention.cpp `scaled_dot_product_attention`, after the backend is chosen."""
    if backend == "flash":
        return _flash(call)
    if backend == "math":
        return _math(call)
    return _cudnn(call) if backend == "cudnn" else _efficient(call)


def _flash(call: Call) -> torch.Tensor:
    """Pad head dimensions to a multiple of 8 outside the kernel, and cut the result."""
    import torch

    size = call.query.shape[-1]
    padded = [_pad_last(tensor, 8) for tensor in (call.query, call.key, call.value)]
    scale = call.scale if call.scale is not None else size**-0.5
    results = torch.ops.aten._scaled_dot_product_flash_attention(
        *padded, call.dropout, call.is_causal, False, scale=scale
    )
    return results[0] if padded[0] is call.query else results[0][..., :size]


def _efficient(call: Call) -> torch.Tensor:
    import torch

    mask = _additive_mask(call)
    if mask is not None:
        # `preprocess_mask`: rows must be aligned to 8 elements, else the mask is copied and padded.
        aligned = all(stride % 8 == 0 for stride in mask.stride()[:-1]) and mask.stride(-1) == 1
        if not aligned:
            length = mask.shape[-1]
            mask = torch.nn.functional.pad(mask, (0, 8 - length % 8))[..., :length]
        mask = mask.expand(*call.query.shape[:3], call.key.shape[2])
    return torch.ops.aten._scaled_dot_product_efficient_attention(
        call.query,
        call.key,
        call.value,
        mask,
        call.needs_grad,
        call.dropout,
        call.is_causal,
        scale=call.scale,
    )[0]


def _cudnn(call: Call) -> torch.Tensor:
    import torch

    return torch.ops.aten._scaled_dot_product_cudnn_attention(
        call.query,
        call.key,
        call.value,
        _additive_mask(call),
        call.needs_grad,
        call.dropout,
        call.is_causal,
        False,
        scale=call.scale,
    )[0]


def _math(call: Call) -> torch.Tensor:
    import torch

    return torch.ops.aten._scaled_dot_product_attention_math(
        call.query,
        call.key,
        call.value,
        _additive_mask(call),
        call.dropout,
        call.is_causal,
        None,
        scale=call.scale,
        enable_gqa=call.grouped,
    )[0]


def _additive_mask(call: Call) -> torch.Tensor | None:
    """`convert_boolean_attn_mask`: a bool mask gets the query's dtype and keeps its shape."""
    import torch

    if call.mask is None or call.mask.dtype != torch.bool:
        return call.mask
    masked = torch.scalar_tensor(float("-inf"), dtype=call.query.dtype)
    return torch.where(call.mask, 0.0, masked)


def _pad_last(tensor: torch.Tensor, multiple: int) -> torch.Tensor:
    import torch

    short = -tensor.shape[-1] % multiple
    return torch.nn.functional.pad(tensor, (0, short)) if short else tensor


def _fits_any_fused_kernel(call: Call) -> bool:
    """Constraints that all fused kernels share: four dimensions, dense rows, equal heads."""
    query, key, value = call.query, call.key, call.value
    if not query.dim() == key.dim() == value.dim() == 4 or 0 in (query.shape[2], key.shape[2]):
        return False
    if not query.shape[0] == key.shape[0] == value.shape[0]:
        return False
    same_heads = query.shape[1] == key.shape[1] == value.shape[1]
    grouped = call.grouped and query.shape[1] % key.shape[1] == 0
    if not (same_heads or (grouped and key.shape[1] == value.shape[1])):
        return False
    if query.dtype != key.dtype or query.dtype != value.dtype:
        return False
    tensors = [tensor for tensor in (query, key, value, call.mask) if tensor is not None]
    return all(tensor.stride(-1) == 1 for tensor in tensors)


def _fits_flash(call: Call, card: Card) -> bool:
    size = call.query.shape[-1]
    if call.mask is not None or card.compute_capability < (8, 0) or not _is_half(call.query):
        return False
    if not size == call.key.shape[-1] == call.value.shape[-1] or size > 256:
        return False
    if call.is_causal and call.query.shape[2] != call.key.shape[2]:
        return False
    if not call.needs_grad or card.compute_capability not in _LITTLE_SHARED_MEMORY:
        return True
    return size <= 192 or (call.dropout == 0.0 and size > 224)


def _fits_efficient(call: Call, card: Card) -> bool:
    """It has no grouped heads (up to torch 2.13) and no bfloat16 below sm80."""
    import torch

    query, key, value = call.query, call.key, call.value
    if query.shape[1] != key.shape[1]:
        return False
    modern = card.compute_capability >= (8, 0)
    dtypes = {torch.float16, torch.float32} | ({torch.bfloat16} if modern else set())
    if query.dtype not in dtypes:
        return False
    # `minimum_gemm_alignment`: 128 bits if tensor cores are used.
    tensor_cores = modern or (card.compute_capability >= (7, 0) and _is_half(query))
    alignment = (8 if _is_half(query) else 4) if tensor_cores else 1
    size = query.shape[-1]
    aligned = size % alignment == 0 and value.shape[-1] % alignment == 0
    return aligned and bool(size == key.shape[-1])


def _fits_cudnn(call: Call) -> bool:
    """`can_use_cudnn_attention` of cuDNN 9.10 and later, for the cards that prefer it."""
    sizes = call.query.shape[-1], call.value.shape[-1]
    fits = max(sizes) <= 128 or sizes == (192, 128)
    if not _is_half(call.query) or not fits:
        return False
    if call.mask is not None and (call.mask.requires_grad or call.mask.dim() == 3):
        return False
    if call.key.shape[2] == 1 or call.query.shape[-1] != call.key.shape[-1]:
        return False
    return sizes[0] % 8 == sizes[1] % 8 == 0 and call.dropout * 16 == int(call.dropout * 16)


def _prefers_cudnn(card: Card) -> bool:
    """sdp_utils.cpp `check_prefer_cudnn_attention`, with the cuDNN that the wheels ship.

    torch 2.9 puts cuDNN first on sm90 and sm100 (pull 162073). torch 2.10 requires cuDNN above 9.15
    but ships 9.10. From 2.11 on, the CUDA 13 wheels ship a later one (transformers pull 48163).
    """
    release = torch_release()
    return (
        card.compute_capability in ((9, 0), (10, 0), (10, 3))
        and release >= (2, 9)
        and release != (2, 10)
    )


def _is_half(tensor: torch.Tensor) -> bool:
    return bool(tensor.is_floating_point() and tensor.element_size() == 2)


_LITTLE_SHARED_MEMORY = ((8, 6), (8, 7), (8, 9), (12, 0), (12, 1))
