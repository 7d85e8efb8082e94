"""The caching allocator itself: allocate and free, and what happens when the device is full."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterator
from itertools import chain

from oomdoctor.analysis.allocator.device import Device
from oomdoctor.analysis.allocator.expandable import map_for, preferred, unmap
from oomdoctor.analysis.allocator.pool import (
    ADDRESS_BITS,
    Block,
    Pool,
    oversize_blocks,
    stale_blocks,
)
from oomdoctor.analysis.allocator.records import OutOfDeviceMemory, OutOfMemory, Segment, Span
from oomdoctor.analysis.allocator.settings import AllocatorSettings
from oomdoctor.analysis.allocator.sizes import (
    MIN_BLOCK,
    SMALL_LIMIT,
    SMALL_SEGMENT,
    round_size,
    segment_size,
)

_NO_LIMIT = 2**62
_DEFAULTS = AllocatorSettings()


class CachingAllocator:
    """One process on one device. Each stream has its own pools: what it frees, only it uses again.

    `capacity_bytes` is what the device has for tensors, without the context and the libraries;
    None means unlimited. `limit_bytes` is the most the process may reserve
    (`set_per_process_memory_fraction`). Garbage is only collected under such a limit. `device` is
    one to use instead of a new one of that capacity.

    `allocated_bytes`, `reserved_bytes` and their peaks are those of `torch.cuda.memory_stats`;
    `retries` is its `num_alloc_retries`.
    """

    def __init__(
        self,
        capacity_bytes: int | None = None,
        settings: AllocatorSettings = _DEFAULTS,
        *,
        limit_bytes: int | None = None,
        device: Device | None = None,
    ) -> None:
        self.settings, self.limit_bytes = settings, limit_bytes
        self.allocated_bytes = self.peak_allocated_bytes = self.retries = 0
        expandable = settings.expandable_segments
        self._divisions = settings.roundup_power2_divisions
        self._max_split = settings.max_split_size_bytes or _NO_LIMIT
        self._split_below = _NO_LIMIT if expandable else self._max_split
        rounding = settings.max_non_split_rounding_bytes
        self._max_excess = settings.large_segment_bytes if rounding is None else rounding
        threshold = settings.garbage_collection_threshold
        collects = threshold is not None and limit_bytes is not None
        self._gc_bytes = int((threshold or 0) * (limit_bytes or 0)) if collects else None
        self._takes_first = not (expandable or collects or settings.max_split_size_bytes)
        self._device = device or Device(capacity_bytes)
        self._pools: dict[int, tuple[Pool, Pool]] = {}
        self._small, self._large = self._pools_of(0)
        self._live: dict[int, Block] = {}

    def _pools_of(self, stream: int) -> tuple[Pool, Pool]:
        """The small and the large pool of a stream; 0 is the default stream."""
        pools = self._pools.get(stream)
        if pools is None:
            settings = self.settings
            rule, page = settings.equal_blocks, settings.large_segment_bytes
            keep = MIN_BLOCK - 1 if settings.expandable_segments else SMALL_LIMIT
            pools = self._pools[stream] = (
                Pool(small=True, keep=MIN_BLOCK - 1, page=SMALL_SEGMENT, rule=rule),
                Pool(small=False, keep=keep, page=page, rule=rule),
            )
        return pools

    @property
    def capacity_bytes(self) -> int | None:
        return self._device.capacity_bytes

    @property
    def reserved_bytes(self) -> int:
        return self._device.taken_bytes

    @property
    def peak_reserved_bytes(self) -> int:
        return self._device.peak_bytes

    def allocate(self, block: int, size: int, stream: int = 0) -> None:
        """Allocate `size` bytes (> 0) for `block`, which is the caller's number for it.

        Raises:
            OutOfDeviceMemory: even after all cached memory was released. Nothing is allocated.
        """
        # `round_size` without divisions, inlined: this runs millions of times.
        rounded = round_size(size, self._divisions) if self._divisions else (size + 511) & -512
        small, large = self._pools_of(stream) if stream else (self._small, self._large)
        pool = small if rounded <= SMALL_LIMIT else large
        if self._takes_first:  # `_cached` without its rules, inlined
            at = bisect_left(pool.keys, rounded << ADDRESS_BITS)
            piece = pool.taken(at) if at < len(pool.keys) else None
        else:
            piece = self._cached(pool, rounded)
        if piece is None:
            piece = self._obtain(pool, rounded, size)
        if piece.size - rounded > pool.keep and rounded < self._split_below:
            rest = piece.cut(rounded)
            rest.swap_numbers(piece)  # the rest is the old object, what is allocated a new one
            pool.add(rest)
        self._live[block] = piece
        allocated = self.allocated_bytes = self.allocated_bytes + piece.size
        if allocated > self.peak_allocated_bytes:
            self.peak_allocated_bytes = allocated

    def free(self, block: int) -> None:
        """Free a block; its memory merges with free neighbours and stays cached.

        Raises:
            KeyError: the block is not allocated.
        """
        freed = self._live.pop(block)
        self.allocated_bytes -= freed.size
        pool = freed.pool
        pool.add(pool.joined(freed))

    def address_of(self, block: int) -> int:
        """The address of a block.

        Raises:
            KeyError: the block is not allocated.
        """
        return self._live[block].address

    def empty_cache(self) -> None:
        """Release all free whole segments, or free whole pages of expandable ones."""
        for pool in (*self._large_pools(), *(small for small, _ in self._pools.values())):
            for block in list(pool.blocks):
                if self.settings.expandable_segments:
                    unmap(block, self._device)
                elif block.is_whole:
                    self._release(block)

    def reset_peaks(self) -> None:
        """Set the peaks to the current values (`torch.cuda.reset_peak_memory_stats`)."""
        self.peak_allocated_bytes = self.allocated_bytes
        self._device.peak_bytes = self.reserved_bytes

    def segments(self) -> tuple[Segment, ...]:
        """The segments reserved from the device, by address."""
        pools = chain.from_iterable(self._pools.values())
        firsts = {at: first for pool in pools for at, first in pool.segments.items()}
        segments = (self._segment(first) for _, first in sorted(firsts.items()))
        return tuple(segment for segment in segments if segment.spans)

    def _segment(self, first: Block) -> Segment:
        spans = (Span(b.address, b.size, not b.key) for b in _chain(first) if b.mapped)
        return Segment(first.pool.small, self.settings.expandable_segments, tuple(spans))

    def _large_pools(self) -> list[Pool]:
        return [large for _, large in self._pools.values()]

    def _cached(self, pool: Pool, size: int) -> Block | None:
        """The free block to use, removed from its pool (`get_free_block` with all its rules)."""
        if self._gc_bytes is not None:
            for pools in self._pools.values():  # PyTorch counts for all streams together
                pools[not pool.small].lookups += 1
        at = pool.first_of(size)
        if at == len(pool.blocks):
            return None
        if self.settings.expandable_segments:
            at = preferred(pool, at)
        smallest = pool.blocks[at]
        if size < self._max_split <= smallest.size:
            return None  # reserved for large requests
        if size >= self._max_split and smallest.size >= size + self._max_excess:
            return None  # too much would be wasted
        return pool.taken(at)

    def _obtain(self, pool: Pool, size: int, asked: int) -> Block:
        """A block from the device, if necessary after releasing cached ones (`malloc`).

        Raises:
            OutOfDeviceMemory: as `allocate`.
        """
        if self._gc_bytes is not None and not self.settings.expandable_segments:
            for stale in stale_blocks(self._large_pools(), self.reserved_bytes - self._gc_bytes):
                self._release(stale)
        segment = segment_size(size, self.settings.large_segment_bytes)
        block = self._reserve(pool, size, segment)
        if block is None and self._release_oversize(pool, size):
            block = self._reserve(pool, size, segment)
        if block is None:
            self.empty_cache()
            self.retries += 1
            block = self._reserve(pool, size, segment)
        if block is None:
            state = OutOfMemory(
                requested_bytes=segment,
                tensor_bytes=asked,
                free_bytes=self._device.free_bytes,
                reserved_bytes=self.reserved_bytes,
                allocated_bytes=self.allocated_bytes,
                limit_bytes=self.limit_bytes,
            )
            raise OutOfDeviceMemory(state)
        return block

    def _reserve(self, pool: Pool, size: int, segment: int) -> Block | None:
        """Try once to get memory from the device (`alloc_block`)."""
        # The check uses the size of an ordinary segment for expandable segments too, though they
        # may map less than that, or up to a page more.
        if self.limit_bytes is not None and self.reserved_bytes + segment > self.limit_bytes:
            return None
        if self.settings.expandable_segments:
            return map_for(pool, size, self._device)
        if not self._device.take(segment):
            return None
        return pool.new_segment(self._device.addresses.place(segment), segment)

    def _release(self, block: Block) -> None:
        """Release a whole segment to the device (`release_block`)."""
        block.pool.remove(block)
        del block.pool.segments[block.address]
        self._device.give_back(block.size)
        self._device.addresses.remove(block.address, block.size)

    def _release_oversize(self, pool: Pool, size: int) -> bool:
        """Release blocks above `max_split_size`; whether that makes room for the request."""
        if self._max_split == _NO_LIMIT or self.settings.expandable_segments:
            return False
        blocks, are_enough = oversize_blocks(pool, size, self._max_split)
        for block in blocks:
            self._release(block)
        return are_enough


def _chain(first: Block) -> Iterator[Block]:
    block: Block | None = first
    while block is not None:
        yield block
        block = block.next
