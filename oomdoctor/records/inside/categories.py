"""Allocated bytes by what they are for, as a memory snapshot tells them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

BlockCategory = Literal[
    "weights", "gradients", "optimizer", "activations", "logits", "temporary", "other"
]


@dataclass(frozen=True, slots=True)
class CategoryBytes:
    """Allocated bytes by what they are for; they add up to what was allocated."""

    weights_bytes: int
    gradients_bytes: int
    optimizer_bytes: int
    activations_bytes: int
    logits_bytes: int
    temporary_bytes: int
    other_bytes: int
