"""The smallest card on which a run would have fitted, by replaying its allocations."""

from __future__ import annotations

from collections.abc import Sequence

from oomdoctor.analysis.allocator import AllocatorSettings, CachingAllocator, OutOfDeviceMemory
from oomdoctor.analysis.fit import MODERN, capability
from oomdoctor.records.inside.run import RankMemory, SmallestGpu
from oomdoctor.runs.devices.cards import card_that_holds
from oomdoctor.runs.watched.larger_batch import LEAST_STEPS
from oomdoctor.runs.watched.seen.processes import Events


def smallest_gpu(
    ranks: Sequence[RankMemory],
    events: Sequence[Events],
    least: tuple[int, int],
    settings: AllocatorSettings,
    *,
    finished: bool = True,
    together: int = 1,
) -> SmallestGpu | None:
    """The NVIDIA card with the least memory that has room for every rank, each on its own GPU.

    It leaves the headroom that a plan leaves. Cards with a compute capability below `least` are
    left out. A card that has what each rank reserved at most has room for it: the run would be the
    same. On a smaller one PyTorch would release cached memory and try again, which the replay finds
    out. `together` ranks share the training.

    None if the run broke off (not `finished`) before its second step ended: only then memory
    repeats, because the first step allocates the states of the optimizer.
    """
    if not ranks or any(rank.oom is not None for rank in ranks):
        return None
    if not finished and any(rank.steps < LEAST_STEPS for rank in ranks):
        return None
    allocated = max(rank.peak_allocated_bytes for rank in ranks)
    reserved = max(rank.peak_reserved_bytes for rank in ranks)
    replayable = bool(events) and all(one.is_whole for one in events)

    def holds(room: int) -> bool:
        if room >= reserved:
            return True
        return room >= allocated and replayable and all(_fits(e, room, settings) for e in events)

    card = card_that_holds(holds, least=least, ranks=together)
    return None if card is None else SmallestGpu(card.name, card.total_bytes)


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
    card = card_that_holds(lambda room: room > needed, least=least)
    return None if card is None else card.name


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
