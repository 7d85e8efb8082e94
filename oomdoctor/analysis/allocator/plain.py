"""The allocator's common case without a call for each event: best fit, and no other rule.

It does what `CachingAllocator.allocate` and `free` do, on the same pools, in one loop. Of a free
block that is split or grows, the object stays in its pool, because its place there mostly stays
the same. Tests hold that the results are those of the calls.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable, Sequence

from oomdoctor.analysis.allocator.caching import CachingAllocator
from oomdoctor.analysis.allocator.pool import ADDRESS_BITS, Block, object_numbers
from oomdoctor.analysis.allocator.sizes import SMALL_LIMIT, round_size

# The rounded size of a block, and of the pool that it is from the keys, the blocks and `keep`.
_Kind = tuple[int, list[int], list[Block], int]


class PlainBlocks:
    """The blocks of an allocator that `is_plain` and serves them alone.

    Events are `+(i + 1)` for the birth of block i and `-(i + 1)` for its death; `sizes` has the
    bytes of each block, and `streams` the stream that allocates it, if there are several. Blocks
    without bytes are passed over.
    """

    def __init__(
        self, allocator: CachingAllocator, sizes: Sequence[int], streams: Sequence[int] | None
    ) -> None:
        self._allocator, self._asked, self._streams = allocator, sizes, streams
        self._kinds = self._kinds_of_blocks(sizes)
        self._live: list[Block | None] = [None] * (len(sizes) + 1)
        self._spare: list[Block] = []  # objects of blocks that were merged into others

    def _kinds_of_blocks(self, sizes: Sequence[int]) -> list[_Kind]:
        divisions = self._allocator.settings.roundup_power2_divisions

        def kind(asked: int, stream: int) -> _Kind:
            size = asked and round_size(asked, divisions)
            pool = self._allocator.pools_of(stream)[size > SMALL_LIMIT]
            return size, pool.keys, pool.blocks, pool.keep

        if self._streams is None:
            kinds = {size: kind(size, 0) for size in set(sizes)}
            return [kind(0, 0), *map(kinds.__getitem__, sizes)]
        both = list(zip(sizes, self._streams, strict=True))
        of_streams = {each: kind(*each) for each in set(both)}
        return [kind(0, 0), *map(of_streams.__getitem__, both)]

    def play(self, events: Iterable[int]) -> None:
        """Play events.

        Raises:
            OutOfDeviceMemory: nothing is allocated for the event.
        """
        allocator, kinds, live, spare = self._allocator, self._kinds, self._live, self._spare
        streams = self._streams
        oldest, bits = allocator.settings.equal_blocks == "oldest", ADDRESS_BITS
        allocated, peak = allocator.allocated_bytes, allocator.peak_allocated_bytes
        for event in events:
            if event > 0:
                size, keys, blocks, keep = kinds[event]
                if not size:
                    continue
                at = bisect_left(keys, size << bits)
                if at == len(keys):
                    allocator.allocated_bytes, allocator.peak_allocated_bytes = allocated, peak
                    pools = allocator.pools_of(0 if streams is None else streams[event - 1])
                    found = allocator.obtain(
                        pools[size > SMALL_LIMIT], size, self._asked[event - 1]
                    )
                    at = len(keys)
                    keys.append(0)
                    blocks.append(found)
                else:
                    found = blocks[at]
                rest = found.size - size
                if rest > keep:
                    if spare:
                        used = spare.pop()
                        used.address, used.size, used.pool = found.address, size, found.pool
                        used.number = next(object_numbers)
                    else:
                        used = Block(found.address, size, found.pool)
                    used.shift = found.shift
                    before = used.previous = found.previous
                    if before is not None:
                        before.next = used
                    used.next = found
                    found.previous = used
                    found.address += size
                    found.size = rest
                    key = rest << bits | (found.number if oldest else found.address + found.shift)
                    found.key = key
                    to = bisect_left(keys, key, 0, at)
                    if to == at:
                        keys[at] = key
                    else:
                        del keys[at]
                        keys.insert(to, key)
                        blocks.insert(to, blocks.pop(at))
                    live[event] = used
                    allocated += size
                else:
                    del keys[at], blocks[at]
                    found.key = 0
                    live[event] = found
                    allocated += found.size
                if allocated > peak:
                    peak = allocated
                continue
            freed = live[-event]
            if freed is None:
                continue
            size = freed.size
            allocated -= size
            _, keys, blocks, _ = kinds[-event]
            before, following = freed.previous, freed.next
            if following is not None and following.key:
                at = bisect_left(keys, following.key)
                size += following.size
                if before is not None and before.key:
                    del keys[at], blocks[at]
                    following.key = 0
                    spare.append(following)
                    following = following.next
                    at = bisect_left(keys, before.key)
                    size += before.size
                    before.next = following
                    if following is not None:
                        following.previous = before
                    grown = before
                else:
                    following.address = freed.address
                    following.previous = before
                    if before is not None:
                        before.next = following
                    grown = following
            elif before is not None and before.key:
                at = bisect_left(keys, before.key)
                size += before.size
                before.next = following
                if following is not None:
                    following.previous = before
                grown = before
            else:
                key = size << bits | (freed.number if oldest else freed.address + freed.shift)
                freed.key = key
                at = bisect_left(keys, key)
                keys.insert(at, key)
                blocks.insert(at, freed)
                continue
            grown.size = size
            grown.number = freed.number
            spare.append(freed)
            key = size << bits | (grown.number if oldest else grown.address + grown.shift)
            grown.key = key
            to = bisect_left(keys, key, at + 1) - 1
            if to == at:
                keys[at] = key
            else:
                del keys[at]
                keys.insert(to, key)
                blocks.insert(to, blocks.pop(at))
        allocator.allocated_bytes, allocator.peak_allocated_bytes = allocated, peak
