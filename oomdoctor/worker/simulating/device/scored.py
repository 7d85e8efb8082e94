"""Tell a simulated step how many tokens a mask selects, which only its values would say.

TRL's losses index tensors with a mask of the completions: the scored tokens of each row.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from fractions import Fraction
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import torch

_share: Fraction | None = None


@contextmanager
def scored(share: Fraction | None) -> Iterator[None]:
    """In this context a mask that indexes a tensor is true for this share of its elements."""
    global _share
    before, _share = _share, share
    try:
        yield
    finally:
        _share = before


def selected(args: Sequence[Any]) -> torch.Tensor | None:
    """`aten.index` with a mask whose share is known; None for any other."""
    import torch

    tensor, indices = args[0], args[1]
    if _share is None or len(indices) != 1 or indices[0] is None:
        return None
    mask = indices[0]
    if mask.dtype != torch.bool:
        return None
    rows = math.ceil(_share * mask.numel())
    result: torch.Tensor = tensor.new_empty((rows, *tensor.shape[mask.dim() :]))
    return result
