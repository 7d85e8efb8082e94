"""How much larger the micro-batch of a run that fitted may be."""

from __future__ import annotations

from collections.abc import Sequence

from oomdoctor.records.inside.run import LargerBatch, RankMemory

LEAST_STEPS = 2  # after the first the optimizer's states are there


def larger_batch(ranks: Sequence[RankMemory], micro_batch_size: int | None) -> LargerBatch | None:
    """The largest micro-batch size that should still fit, taken over all ranks.

    What a rank reserved at most, minus what its steps leave allocated, holds all that depends on
    the batch, and gradients and workspaces too. All of it is taken to grow with the micro-batch, so
    the answer is cautious. None if it is not known, or no larger one fits.
    """
    sizes = [_of_rank(rank, micro_batch_size) for rank in ranks] if micro_batch_size else []
    if micro_batch_size is None or not sizes:
        return None
    known = [size for size in sizes if size is not None]
    if len(known) < len(sizes):
        return None
    largest, per_row = min(known)
    if largest <= micro_batch_size:
        return None
    return LargerBatch(micro_batch_size, largest, per_row)


def _of_rank(rank: RankMemory, rows: int | None) -> tuple[int, int] | None:
    steps = [step for step in rank.steps_memory if step.step >= LEAST_STEPS]
    if not rows or not steps or rank.headroom_bytes is None or rank.outcome != "fits":
        return None
    if rank.retries:  # it has already been as full as it can be
        return rows, 0
    left = min(step.allocated_bytes for step in steps)
    per_row = -(-(rank.peak_reserved_bytes - left) // rows)
    if per_row <= 0:
        return None
    return rows + rank.headroom_bytes // per_row, per_row
