"""Expandable segments: address space first, then memory for it page by page.

A pool has one segment that grows at its end; memory is mapped in pages of 2 MiB (small pool) or
20 MiB (large pool) and unmapped where whole pages are free. See Note [Expandable Segments] in
c10/cuda/CUDACachingAllocator.cpp.
"""

from __future__ import annotations

from bisect import insort
from operator import attrgetter

from oomdoctor.analysis.allocator.device import Device
from oomdoctor.analysis.allocator.pool import Block, Pool

_ADDRESS = attrgetter("address")


def map_for(pool: Pool, size: int, device: Device) -> Block | None:
    """A free block of at least `size` bytes, outside the pool, with newly mapped memory.

    None if the device has too few pages left; a part that was already mapped stays free in the
    pool (`try_allocate_expandable_block`).
    """
    block = _room_for(pool, size)
    if block is None:
        block = _new_segment(pool, device)
    if not block.mapped:
        mapped = _map(block, min(size, block.size), device)
        if mapped is None:
            return None
        block = mapped
    while block.size < size:
        beyond = block.next
        mapped = beyond and _map(beyond, min(size - block.size, beyond.size), device)
        if mapped is None:
            return None
        block = mapped
    pool.remove(block)
    return block


def unmap(block: Block, device: Device) -> None:
    """Release the whole pages inside a free block (`unmap_block`).

    A segment without any memory left is removed (`release_expandable_segment`).
    """
    pool = block.pool
    first = -(-block.address // pool.page) * pool.page
    last = (block.address + block.size) // pool.page * pool.page
    if first >= last:
        return
    pool.remove(block)
    if last < block.address + block.size:
        pool.add(block.cut(last - block.address))
    if first > block.address:
        before, block = block, block.cut(first - block.address)
        before.swap_numbers(block)  # what is unmapped is the old object
        pool.add(before)
    block.mapped = False
    device.give_back(last - first)
    _join_unmapped(block)


def preferred(pool: Pool, at: int) -> int:
    """The index of the block to use instead of the best fit (`get_free_block`).

    A block that can grow counts with the address space after it, so the end of the segment is
    used last.
    """
    blocks = pool.blocks
    while at + 1 < len(blocks) and _reach(blocks[at + 1]) < _reach(blocks[at]):
        at += 1
    return at


def _reach(block: Block) -> int:
    beyond = block.next
    return block.size + (beyond.size if beyond is not None and not beyond.mapped else 0)


def _room_for(pool: Pool, size: int) -> Block | None:
    """The lowest run of free and unmapped blocks that is large enough (`find_expandable_block`)."""
    for unmapped in pool.unmapped:
        before = unmapped.previous
        start = before if before is not None and before.key else unmapped
        room, block = 0, start
        while room < size and (block.key or not block.mapped):
            room += block.size
            if block.next is None:
                break
            block = block.next
        if room >= size:
            return start
    return None


def _new_segment(pool: Pool, device: Device) -> Block:
    space = device.expandable_space(pool.page)
    # Pages are counted from the start of the segment, so they can be counted from address 0.
    start = -(-device.addresses.place(space + pool.page) // pool.page) * pool.page
    block = pool.new_segment(start, space)
    block.mapped = False
    insort(pool.unmapped, block, key=_ADDRESS)
    return block


def _map(block: Block, size: int, device: Device) -> Block | None:
    """Map the first `size` bytes, in whole pages, and merge with free neighbours."""
    pool = block.pool
    mapped = -(-size // pool.page) * pool.page
    if not device.take(mapped):
        return None
    pool.unmapped.remove(block)
    if mapped < block.size:
        insort(pool.unmapped, block.cut(mapped), key=_ADDRESS)
    block.mapped = True
    block = pool.joined(block)
    pool.add(block)
    return block


def _join_unmapped(block: Block) -> None:
    pool = block.pool
    following, before = block.next, block.previous
    if following is not None and not following.mapped:
        pool.unmapped.remove(following)
        block.absorb(following)
    if before is not None and not before.mapped:
        pool.unmapped.remove(before)
        before.absorb(block)
        block = before
    if block.is_whole:
        del pool.segments[block.address]
    else:
        insort(pool.unmapped, block, key=_ADDRESS)
