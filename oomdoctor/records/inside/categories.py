"""Allocated bytes by what they are for, as a memory snapshot tells them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Literal, get_args

from oomdoctor.records.facts.categories import OTHER, TABLE

BlockCategory = Literal[
    "weights", "gradients", "optimizer", "activations", "logits", "temporary", "other"
]

CATEGORY_WORDS: Mapping[BlockCategory, str] = MappingProxyType(
    {name: TABLE[name].words for name in get_args(BlockCategory)} | {OTHER: "not known"}
)
"""Each category as people read it; a snapshot cannot say what other blocks are."""


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

    def of(self, category: BlockCategory) -> int:
        """The bytes of one category."""
        size: int = getattr(self, f"{category}_bytes")
        return size
