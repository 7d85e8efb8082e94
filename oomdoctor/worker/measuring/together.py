"""Decisions that all ranks of a training have to take alike.

Clocks differ between ranks. A rank that takes a step more than the others waits for them in vain.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import torch


def as_first_rank(choice: int, device: torch.device) -> int:
    """What rank 0 chose; all ranks have to call this. One process keeps its own choice."""
    import torch
    import torch.distributed as dist

    if not (dist.is_available() and dist.is_initialized()) or dist.get_world_size() == 1:
        return choice
    told = torch.tensor([choice], device=device)
    dist.broadcast(told, src=0)
    return int(told.item())
