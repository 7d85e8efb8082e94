"""Blocks, the pools of free ones in best-fit order, and which of them to release first."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable
from itertools import count

from oomdoctor.analysis.allocator.settings import EqualBlocks

# Free blocks are sorted by size, then by address or by the order of their making, packed into one
# integer. Addresses are below 2**59 (`device.TOP`), and so is the sum of all segments.
ADDRESS_BITS = 60
_numbers = count(1)


class Block:
    """A part of a segment, linked to its neighbours.

    `key` is its place in the pool while it is free and mapped, otherwise 0. `mapped` is False for
    address space of an expandable segment without memory. `born` is the pool's lookup count when
    the block became free; garbage collection uses it as its age. `number` counts PyTorch's block
    objects in the order of their making. `address + shift` counts on from the pool's segments that
    were reserved before, if that decides between equal blocks.
    """

    __slots__ = ("address", "born", "key", "mapped", "next", "number", "pool", "previous", "shift",
                 "size")  # fmt: skip

    def __init__(self, address: int, size: int, pool: Pool, previous: Block | None = None) -> None:
        self.address, self.size, self.pool, self.previous = address, size, pool, previous
        self.next: Block | None = None
        self.key = 0
        self.mapped = True
        self.shift: int = 0 if previous is None else previous.shift
        self.born = 0
        self.number = next(_numbers)

    @property
    def is_whole(self) -> bool:
        """Whether it is a whole segment (`!is_split`)."""
        return self.previous is None and self.next is None

    def cut(self, size: int) -> Block:
        """Keep the first `size` bytes; the rest becomes a new block after it, in no pool yet."""
        rest = Block(self.address + size, self.size - size, self.pool, self)
        rest.mapped = self.mapped
        following = rest.next = self.next
        if following is not None:
            following.previous = rest
        self.next = rest
        self.size = size
        return rest

    def swap_numbers(self, other: Block) -> None:
        """For parts that PyTorch's objects are on the other side of."""
        self.number, other.number = other.number, self.number

    def absorb(self, following: Block) -> None:
        """Merge the block after it, which must not be in a pool."""
        self.size += following.size
        beyond = self.next = following.next
        if beyond is not None:
            beyond.previous = self


class Pool:
    """The free blocks of one stream in the small or in the large pool, the smallest first.

    `keys` and `blocks` are parallel lists, so that the search compares plain integers. A block is
    split if more than `keep` bytes would be left (`should_split`). `rule` says which of equal
    blocks comes first. `segments` has the first block of each segment by address; it stays the
    first as long as the segment exists. `page` is the least an expandable segment maps, `unmapped`
    its address space without memory.
    """

    __slots__ = ("_reserved", "blocks", "keep", "keys", "lookups", "page", "rule", "segments",
                 "small", "unmapped")  # fmt: skip

    def __init__(self, *, small: bool, keep: int, page: int, rule: EqualBlocks = "lowest") -> None:
        self.small, self.rule, self.keep, self.page = small, rule, keep, page
        self.keys: list[int] = []
        self.blocks: list[Block] = []
        self.segments: dict[int, Block] = {}
        self.unmapped: list[Block] = []  # by address
        self.lookups = 0
        self._reserved = 0  # bytes of all segments so far

    def new_segment(self, address: int, size: int) -> Block:
        """A segment that was just reserved, as one block that is not free yet."""
        block = self.segments[address] = Block(address, size, self)
        if self.rule == "oldest_segment":
            block.shift = self._reserved - address
            self._reserved += size
        return block

    def add(self, block: Block) -> None:
        second = block.number if self.rule == "oldest" else block.address + block.shift
        key = block.key = block.size << ADDRESS_BITS | second
        at = bisect_left(self.keys, key)
        self.keys.insert(at, key)
        self.blocks.insert(at, block)
        block.born = self.lookups

    def remove(self, block: Block) -> None:
        self.taken(bisect_left(self.keys, block.key))

    def taken(self, at: int) -> Block:
        """The block at an index, which is removed."""
        del self.keys[at]
        block = self.blocks.pop(at)
        block.key = 0
        return block

    def joined(self, block: Block) -> Block:
        """A block that is in no pool, merged with its free neighbours."""
        following, before = block.next, block.previous
        if following is not None and following.key:
            self.taken(bisect_left(self.keys, following.key))
            block.absorb(following)
        if before is not None and before.key:
            self.taken(bisect_left(self.keys, before.key))
            before.absorb(block)
            before.number = block.number
            return before
        return block

    def first_of(self, size: int) -> int:
        """The index of the smallest free block of at least `size` bytes; the length if none."""
        return bisect_left(self.keys, size << ADDRESS_BITS)


def stale_blocks(pools: Iterable[Pool], target: int) -> list[Block]:
    """Whole free segments to release, those unused for longer than average first.

    Each round takes all blocks of at least average age, until `target` bytes are reached
    (`garbage_collect_cached_blocks`). Ages are counted in lookups of the pool.
    """
    kept = [
        (pool.lookups - block.born, block)
        for pool in pools
        for block in pool.blocks
        if block.is_whole
    ]
    chosen: list[Block] = []
    reclaimed = 0
    while kept and reclaimed < target:
        average = sum(age for age, _ in kept) / len(kept)
        stale = [block for age, block in kept if age >= average]
        kept = [(age, block) for age, block in kept if age < average]
        reclaimed += sum(block.size for block in stale)
        chosen += stale
    return chosen


def oversize_blocks(pool: Pool, size: int, max_split_size: int) -> tuple[list[Block], bool]:
    """Blocks too large to be split, to release for a request, and whether they are enough.

    The smallest that is enough alone, otherwise the largest ones together
    (`release_available_cached_blocks`). Any block of `size` bytes or more is too large to be
    split: otherwise it would have served the request.
    """
    at = pool.first_of(size)
    if at < len(pool.blocks):
        return [pool.blocks[at]], True
    chosen: list[Block] = []
    released = 0
    for block in reversed(pool.blocks):
        if released >= size or block.size < max_split_size:
            break
        chosen.append(block)
        released += block.size
    return chosen, released >= size
