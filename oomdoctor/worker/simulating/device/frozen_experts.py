"""Experts that are not trained, in types that torch's fake kernel of grouped products refuses.

There transformers' fallback stands for torch's own product. Its backward pass also makes gradients
of weights, so it keeps the input of every expert; torch keeps it only where weights are trained.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import torch

Product = Callable[..., "torch.Tensor"]


def without_inputs(own: Product) -> Product:
    """transformers' `_grouped_mm`, which keeps of frozen weights what torch's own product keeps."""
    import torch

    def product(input: torch.Tensor, weight: torch.Tensor, offs: torch.Tensor) -> torch.Tensor:
        if weight.requires_grad or weight.dtype == torch.bfloat16:
            return own(input, weight, offs)
        result: torch.Tensor = _frozen().apply(input.to(weight.dtype), weight, offs)
        return result

    return product


@cache
def _frozen() -> Any:
    import torch

    class Frozen(torch.autograd.Function):  # type: ignore[misc]
        @staticmethod
        def forward(ctx: Any, input: Any, weight: Any, offs: Any) -> Any:
            ctx.save_for_backward(weight, offs)
            return torch.ops.transformers.grouped_mm_fallback(input, weight, offs)

        @staticmethod
        def backward(ctx: Any, grad: Any) -> Any:
            weight, offs = ctx.saved_tensors
            back = weight.transpose(-2, -1)
            return torch.ops.transformers.grouped_mm_fallback(grad, back, offs), None, None

    return Frozen
