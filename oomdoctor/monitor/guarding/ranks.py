"""Skipping a batch when several ranks train one model: all of them, or none.

A rank that ran out of memory has left its step, and the others wait for it in the collectives of
theirs. So it first takes part in what is left of those, with zeros (`catch_up`), through the code
of DistributedDataParallel or fully_shard. At the end of each block all ranks say whether theirs
failed (`agree`). They do that on the CPU, so that no rank waits for its GPU.
"""

from __future__ import annotations

from typing import Any, Protocol


class Ranks(Protocol):
    """What one way of training on several ranks does."""

    def begin(self) -> None:
        """A block begins."""

    def why_not(self) -> str | None:
        """Why this batch cannot be skipped, in words; None if it can."""

    def catch_up(self) -> None:
        """Take part in the collectives of this step that the other ranks still wait for."""

    def agree(self, failed: bool) -> list[int]:
        """The ranks whose block failed; all ranks call it at the end of each block."""


class Alone:
    """One process trains."""

    def begin(self) -> None:
        """Nothing to do."""

    def why_not(self) -> str | None:
        """It always can."""
        return None

    def catch_up(self) -> None:
        """Nobody waits."""

    def agree(self, failed: bool) -> list[int]:
        """Rank 0, if it failed."""
        return [0] if failed else []


class Unknown(Alone):
    """Several ranks whose collectives are not known here: an error ends the training as usual."""

    def why_not(self) -> str | None:
        """Nothing can be skipped."""
        return (
            "several ranks train, and the model is neither DistributedDataParallel nor sharded by "
            "fully_shard, so the other ranks would wait for ever"
        )

    def agree(self, failed: bool) -> list[int]:
        """Only this rank, which will raise."""
        return []


class Agreement:
    """A group on the CPU, in which each rank tells the others whether its block failed."""

    def __init__(self) -> None:
        import torch.distributed as dist

        self._group: Any = dist.new_group(backend="gloo")

    def agree(self, failed: bool) -> list[int]:
        """The ranks that failed."""
        import torch
        import torch.distributed as dist

        flags = torch.zeros(dist.get_world_size(), dtype=torch.int32)
        flags[dist.get_rank()] = int(failed)
        dist.all_reduce(flags, group=self._group)
        return [rank for rank, flag in enumerate(flags.tolist()) if flag]
