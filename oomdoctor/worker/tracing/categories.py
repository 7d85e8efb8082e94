"""The category of memory of a tensor that a trace sees."""

from __future__ import annotations

from typing import TYPE_CHECKING

from oomdoctor.records.facts.categories import ACTIVATIONS, LOGITS, TEMPORARY

if TYPE_CHECKING:
    import torch


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
