"""The categories of memory that a trace distinguishes."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import torch

WEIGHTS, GRADIENTS, OPTIMIZER = "weights", "gradients", "optimizer"
ACTIVATIONS, LOGITS = "activations", "logits"
INPUTS, TEMPORARY = "inputs", "temporary"
CATEGORIES = (WEIGHTS, GRADIENTS, OPTIMIZER, ACTIVATIONS, LOGITS, INPUTS, TEMPORARY)


def category_of(tensor: torch.Tensor, phase: str, vocabulary: int, tokens: int) -> str:
    """The category of a new tensor, from its shape and the phase of the step.

    A tensor with a score per word of the `vocabulary` for at least `tokens` tokens is logits.
    """
    import torch

    shape = tensor.shape
    scores = vocabulary and len(shape) >= 2 and shape[-1] == vocabulary
    if scores and tensor.numel() >= tokens * vocabulary:
        return LOGITS
    if phase in ("forward", "eval"):
        return ACTIVATIONS
    # The backward pass runs without grad mode. With it, checkpointing recomputes a forward pass.
    if phase == "backward" and torch.is_grad_enabled():
        return ACTIVATIONS
    return TEMPORARY
