"""Expandable segments by hand: pages, growth, gaps and what is given back."""

from __future__ import annotations

import pytest
from rising_addresses import Rising

from oomdoctor.analysis.allocator.caching import CachingAllocator
from oomdoctor.analysis.allocator.device import Device
from oomdoctor.analysis.allocator.records import OutOfDeviceMemory
from oomdoctor.analysis.allocator.replay import replay_order
from oomdoctor.analysis.allocator.settings import AllocatorSettings
from oomdoctor.units import KIB, MIB

EXPANDABLE = AllocatorSettings.parse("expandable_segments:True")


def _allocator(capacity: int | None = None, limit: int | None = None) -> CachingAllocator:
    device = Device(capacity, Rising())
    return CachingAllocator(settings=EXPANDABLE, limit_bytes=limit, device=device)


def _blocks(allocator: CachingAllocator) -> list[list[tuple[int, bool]]]:
    return [[(span.size, span.in_use) for span in s.spans] for s in allocator.segments()]


def test_each_pool_maps_pages_of_its_size() -> None:
    allocator = _allocator()
    allocator.allocate(0, 4 * KIB)
    assert allocator.reserved_bytes == 2 * MIB
    allocator.allocate(1, 21 * MIB)
    assert allocator.reserved_bytes == 42 * MIB  # two pages of 20 MiB
    assert [(s.small, s.expandable) for s in allocator.segments()] == [(True, True), (False, True)]


def test_the_page_of_the_large_pool_is_a_setting() -> None:
    settings = AllocatorSettings.parse("expandable_segments:True,large_segment_size_mb:32")
    allocator = CachingAllocator(settings=settings)
    allocator.allocate(0, 2 * MIB)
    assert allocator.reserved_bytes == 32 * MIB


def test_large_blocks_are_split_down_to_512_bytes() -> None:
    allocator = _allocator()
    allocator.allocate(0, 20 * MIB - 512)
    assert _blocks(allocator) == [[(20 * MIB - 512, True), (512, False)]]
    assert allocator.allocated_bytes == 20 * MIB - 512


def test_a_segment_grows_and_starts_in_what_is_free_at_its_end() -> None:
    allocator = _allocator()
    allocator.allocate(0, 15 * MIB)
    allocator.allocate(1, 20 * MIB)  # 5 MiB of the first page and 15 of the next
    assert allocator.reserved_bytes == 40 * MIB
    assert _blocks(allocator) == [[(15 * MIB, True), (20 * MIB, True), (5 * MIB, False)]]


def test_the_end_that_can_grow_is_used_last() -> None:
    allocator = _allocator()
    allocator.allocate(0, 12 * MIB)
    allocator.allocate(1, 3 * MIB)
    allocator.free(0)
    # 5 MiB at the end would fit best, but they count with all the address space after them.
    allocator.allocate(2, 4 * MIB)
    assert _blocks(allocator) == [
        [(4 * MIB, True), (8 * MIB, False), (3 * MIB, True), (5 * MIB, False)]
    ]


def test_of_equal_reach_the_smaller_block_is_used() -> None:
    allocator = _allocator()
    for block, size in enumerate((10 * MIB, 30 * MIB, 10 * MIB, 30 * MIB, 19 * MIB)):
        allocator.allocate(block, size)
    allocator.free(1)
    allocator.empty_cache()  # 10 MiB stay free, the page of 20 MiB behind them is unmapped
    allocator.free(3)  # 30 MiB, the same as 10 and 20
    allocator.allocate(5, 8 * MIB)
    assert _blocks(allocator)[0][:3] == [(10 * MIB, True), (8 * MIB, True), (2 * MIB, False)]


def test_emptying_the_cache_unmaps_whole_pages_only() -> None:
    allocator = _allocator()
    for block, size in enumerate((10 * MIB, 60 * MIB, 10 * MIB)):
        allocator.allocate(block, size)
    allocator.free(1)  # from 10 to 70 MiB: two pages of 20 MiB lie in it, from 20 to 60
    allocator.empty_cache()
    assert allocator.reserved_bytes == 40 * MIB
    assert _blocks(allocator) == [
        [(10 * MIB, True), (10 * MIB, False), (10 * MIB, False), (10 * MIB, True)]
    ]
    allocator.allocate(3, 30 * MIB)  # fills the gap again: 10 MiB, and one page beside them
    assert allocator.reserved_bytes == 60 * MIB
    assert _blocks(allocator)[0][1] == (30 * MIB, True)


def test_an_empty_segment_is_given_up() -> None:
    allocator = _allocator()
    allocator.allocate(0, 50 * MIB)
    allocator.free(0)
    allocator.empty_cache()
    assert (allocator.reserved_bytes, allocator.segments()) == (0, ())
    allocator.allocate(1, 50 * MIB)
    assert allocator.reserved_bytes == 60 * MIB


def test_address_space_without_memory_is_no_segment() -> None:
    allocator = _allocator(capacity=MIB)
    with pytest.raises(OutOfDeviceMemory) as failure:
        allocator.allocate(0, 512)
    assert failure.value.record.requested_bytes == 2 * MIB
    assert (allocator.reserved_bytes, allocator.segments()) == (0, ())


def test_a_gap_is_filled_and_joined_with_the_free_block_behind_it() -> None:
    allocator = _allocator(capacity=60 * MIB)
    for block, size in enumerate((20 * MIB, 10 * MIB, 5 * MIB)):
        allocator.allocate(block, size)
    allocator.free(0)
    allocator.empty_cache()  # an unmapped page, then 10 and 5 MiB in use, 5 free
    allocator.free(1)
    allocator.allocate(3, 30 * MIB)  # the page again and the 10 MiB behind it
    allocator.allocate(4, 20 * MIB)
    assert (allocator.allocated_bytes, allocator.reserved_bytes) == (55 * MIB, 60 * MIB)
    assert _blocks(allocator) == [
        [(30 * MIB, True), (5 * MIB, True), (20 * MIB, True), (5 * MIB, False)]
    ]


def test_a_full_device_moves_pages_to_where_they_are_needed() -> None:
    allocator = _allocator(capacity=100 * MIB)
    for block, size in enumerate((40 * MIB, 20 * MIB, 40 * MIB)):
        allocator.allocate(block, size)
    allocator.free(0)
    allocator.free(2)
    allocator.allocate(3, 80 * MIB)  # no stretch is long enough, but 80 MiB of pages are free
    assert allocator.retries == 1
    assert (allocator.allocated_bytes, allocator.reserved_bytes) == (100 * MIB, 100 * MIB)
    with pytest.raises(OutOfDeviceMemory):
        allocator.allocate(4, 2 * MIB)


def test_the_limit_counts_the_segment_that_is_not_there() -> None:
    # `alloc_block` compares `get_allocation_size`, also when fewer pages would be mapped.
    allocator = _allocator(limit=50 * MIB)
    allocator.allocate(0, 30 * MIB)
    assert allocator.reserved_bytes == 40 * MIB
    with pytest.raises(OutOfDeviceMemory) as failure:
        allocator.allocate(1, 12 * MIB)
    assert failure.value.record.requested_bytes == 12 * MIB


def test_the_last_page_may_go_beyond_the_limit() -> None:
    allocator = _allocator(limit=50 * MIB)
    allocator.allocate(0, 20 * MIB)
    allocator.allocate(1, 30 * MIB)  # 20 + 30 are allowed, two pages of 20 are mapped
    assert allocator.reserved_bytes == 60 * MIB


def test_a_fragmenting_trace_reserves_less() -> None:
    """Activations that grow a little every step leave holes in segments of their own."""
    events: list[int] = []
    sizes: list[int] = []
    for step in range(20):
        sizes += [(30 + step) * MIB, (45 + step) * MIB, (60 + 2 * step) * MIB]
        blocks = range(len(sizes) - 2, len(sizes) + 1)
        events += [*blocks, *(-block for block in blocks)]
    default = replay_order(events, sizes)
    expandable = replay_order(events, sizes, settings=AllocatorSettings(expandable_segments=True))
    assert expandable.peak_allocated_bytes <= default.peak_allocated_bytes
    # The largest step is 49 + 64 + 98 = 211 MiB: eleven pages.
    assert expandable.peak_reserved_bytes == 220 * MIB
    assert default.peak_reserved_bytes > 400 * MIB
