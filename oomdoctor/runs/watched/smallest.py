"""The smallest card on which a run would have fitted, by replaying its allocations."""

from __future__ import annotations

from collections.abc import Sequence

from oomdoctor.analysis.allocator import AllocatorSettings, CachingAllocator, OutOfDeviceMemory
from oomdoctor.records.inside.run import RankMemory, SmallestGpu
from oomdoctor.runs.devices.smallest_card import MODERN, capability, nvidia_cards
from oomdoctor.runs.watched.seen.processes import Events


def smallest_gpu(
    ranks: Sequence[RankMemory],
    events: Sequence[Events],
    least: tuple[int, int],
    settings: AllocatorSettings,
) -> SmallestGpu | None:
    """The NVIDIA card with the least memory that has room for every rank, each on its own GPU.

    Cards with a compute capability below `least` are left out.
    A card that has what each rank reserved at most has room for it: the run would be the same. On
    a smaller one PyTorch would release cached memory and try again, which the replay finds out.
    """
    if not ranks or any(rank.oom is not None for rank in ranks):
        return None
    allocated = max(rank.peak_allocated_bytes for rank in ranks)
    reserved = max(rank.peak_reserved_bytes for rank in ranks)
    replayable = bool(events) and all(one.is_whole for one in events)
    for card in nvidia_cards(least):
        usable = card.total_bytes - card.context.likely
        if usable >= reserved or (
            usable >= allocated
            and replayable
            and all(_fits(one, usable, settings) for one in events)
        ):
            return SmallestGpu(card.name, card.total_bytes)
    return None


def least_capability(card: str, architectures: Sequence[str]) -> tuple[int, int]:
    """The lowest compute capability to choose from.

    The build of torch needs kernels for it (`architectures`, such as sm_75). A run on a card with
    bfloat16 and flash attention may use them, so a card without them would not do.
    """
    known = [int(word[3:].rstrip("af")) for word in architectures if word.startswith("sm_")]
    oldest = divmod(min(known), 10) if known else (0, 0)
    major, minor = capability(card)
    return max(oldest, MODERN) if (major, minor) >= MODERN else oldest


def next_larger(needed: int, least: tuple[int, int]) -> str | None:
    """The smallest card that has more than the bytes that were needed; None if there is none."""
    for card in nvidia_cards(least):
        if card.total_bytes - card.context.likely > needed:
            return card.name
    return None


def _fits(events: Events, usable: int, settings: AllocatorSettings) -> bool:
    """Replay on a card with so much room."""
    allocator = CachingAllocator(usable, settings)
    numbers = events.numbers
    for i in range(0, len(numbers), 3):
        block, size, stream = numbers[i : i + 3]
        try:
            if size < 0:
                allocator.free(block)
            else:
                allocator.allocate(block, max(size, 1), stream)
        except OutOfDeviceMemory:
            return False
    return True
