"""The category of memory of a tensor that a trace sees, the same for every engine.

Weights that an engine gathers are weights. Its buckets and flat copies of gradients are temporary.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from oomdoctor.records.facts.categories import ACTIVATIONS, LOGITS, TEMPORARY

if TYPE_CHECKING:
    import torch


_GATHERS = frozenset(
    f"c10d::{name}"
    for name in (
        "allgather_",
        "_allgather_base_",
        "allgather_coalesced_",
        "allgather_into_tensor_coalesced_",
    )
)
_SPLITS_GATHERED = "fsdp::split_with_sizes_copy"  # into the weights of a unit


def gathered(operator: str, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
    """The tensors that an operator fills with what all ranks have; empty for all other operators.

    In a forward or backward pass that is the weights.
    """
    if operator == _SPLITS_GATHERED:
        return kwargs.get("out", ())
    return args[0] if operator in _GATHERS else ()


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
