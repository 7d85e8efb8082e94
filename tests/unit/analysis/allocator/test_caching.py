"""The rules of the caching allocator one by one, worked out by hand from the C++ source."""

from __future__ import annotations

import pytest
from rising_addresses import Rising

from oomdoctor.analysis.allocator.caching import CachingAllocator
from oomdoctor.analysis.allocator.device import Device
from oomdoctor.analysis.allocator.records import OutOfDeviceMemory
from oomdoctor.analysis.allocator.settings import AllocatorSettings, EqualBlocks, equal_blocks_of
from oomdoctor.units import KIB, MIB


def _allocator(
    text: str = "", capacity: int | None = None, limit: int | None = None
) -> CachingAllocator:
    device = Device(capacity, Rising())
    return CachingAllocator(
        settings=AllocatorSettings.parse(text), limit_bytes=limit, device=device
    )


def _blocks(allocator: CachingAllocator) -> list[list[tuple[int, bool]]]:
    """Segment by segment the sizes of the blocks and whether they are in use."""
    return [[(span.size, span.in_use) for span in s.spans] for s in allocator.segments()]


def _fill(allocator: CachingAllocator, *sizes: int) -> None:
    for block, size in enumerate(sizes):
        allocator.allocate(block, size)


def test_small_and_large_blocks_come_from_pools_of_their_own() -> None:
    allocator = _allocator()
    _fill(allocator, MIB, MIB + 1)
    assert [segment.small for segment in allocator.segments()] == [True, False]
    assert allocator.reserved_bytes == 22 * MIB
    allocator.free(1)
    allocator.allocate(2, MIB)  # 20 MiB are free, but not for a small block
    assert allocator.reserved_bytes == 22 * MIB
    assert _blocks(allocator)[0] == [(MIB, True), (MIB, True)]


def test_a_small_block_leaves_whatever_is_512_bytes_or_more() -> None:
    allocator = _allocator()
    _fill(allocator, 2 * MIB - 512 - MIB, MIB)
    # 512 bytes of the segment of 2 MiB are left and are a block of their own.
    assert _blocks(allocator) == [[(MIB - 512, True), (MIB, True), (512, False)]]
    allocator.allocate(2, 3)
    assert allocator.reserved_bytes == 2 * MIB


def test_a_large_block_is_only_split_when_more_than_1_mib_is_left() -> None:
    allocator = _allocator()
    allocator.allocate(0, 11 * MIB)  # in a segment of 12 MiB: exactly 1 MiB would be left
    assert _blocks(allocator) == [[(12 * MIB, True)]]
    assert allocator.allocated_bytes == 12 * MIB  # so PyTorch counts it as allocated
    allocator.allocate(1, 11 * MIB - 512)  # 1 MiB and 512 bytes
    assert _blocks(allocator)[1] == [(11 * MIB - 512, True), (MIB + 512, False)]
    assert allocator.allocated_bytes == 23 * MIB - 512


def test_the_smallest_free_block_that_is_large_enough_is_taken() -> None:
    allocator = _allocator()
    _fill(allocator, 40 * MIB, 12 * MIB, 30 * MIB)
    for block in (0, 1, 2):
        allocator.free(block)
    allocator.allocate(3, 12 * MIB + 512)
    assert _blocks(allocator) == [
        [(40 * MIB, False)],
        [(12 * MIB, False)],
        [(12 * MIB + 512, True), (18 * MIB - 512, False)],
    ]


def test_of_equal_blocks_the_one_with_the_lowest_address_is_taken() -> None:
    allocator = _allocator()
    _fill(allocator, 16 * MIB, 16 * MIB, 16 * MIB)
    for block in (2, 0, 1):
        allocator.free(block)
    allocator.allocate(3, 16 * MIB)
    assert [blocks[0][1] for blocks in _blocks(allocator)] == [True, False, False]


class TestOldestFirst:
    """With torch 2.12, of equal blocks the one is used whose object was made first."""

    def _allocator(self, equal_blocks: EqualBlocks = "oldest") -> CachingAllocator:
        return CachingAllocator(settings=AllocatorSettings(equal_blocks=equal_blocks))

    @pytest.mark.parametrize(
        ("rule", "used"), [("oldest", 0), ("lowest", 2), ("oldest_segment", 0)]
    )
    def test_of_equal_segments_the_first_is_used(self, rule: EqualBlocks, used: int) -> None:
        allocator = self._allocator(rule)
        _fill(allocator, 32 * MIB, 32 * MIB, 32 * MIB)  # addresses come downwards
        addresses = [allocator._live[block].address for block in (0, 1, 2)]
        for block in (2, 0, 1):
            allocator.free(block)
        allocator.allocate(3, 32 * MIB)
        assert allocator._live[3].address == addresses[used]

    def test_what_is_left_of_a_split_is_the_old_block(self) -> None:
        allocator = self._allocator()
        _fill(allocator, 20 * MIB, 18 * MIB)
        first, second = (allocator._live[block].address for block in (0, 1))
        allocator.free(0)
        allocator.allocate(2, 2 * MIB)  # leaves 18 MiB of the first
        allocator.free(1)
        allocator.allocate(3, 18 * MIB)
        assert allocator._live[3].address == first + 2 * MIB
        allocator.allocate(4, 18 * MIB)
        assert allocator._live[4].address == second

    def test_a_merged_block_is_the_one_that_was_freed_last(self) -> None:
        allocator = self._allocator()
        _fill(allocator, 20 * MIB, 20 * MIB)
        second = allocator._live[1].address
        allocator.free(0)
        allocator.allocate(2, 2 * MIB)
        allocator.free(1)
        allocator.free(2)  # made last, and merged with what was left of the first
        allocator.allocate(3, 20 * MIB)
        assert allocator._live[3].address == second

    def test_in_the_oldest_segment_the_lowest_address_is_used(self) -> None:
        allocator = self._allocator("oldest_segment")
        _fill(allocator, *[2 * MIB] * 10, 20 * MIB)  # the second segment lies below the first
        first, second = (allocator._live[block].address for block in (0, 10))
        assert second < first
        for block in (6, 2, 4, 10):
            allocator.free(block)
        allocator.allocate(11, 18 * MIB)  # leaves 2 MiB of the second
        for block, address in (12, first + 4 * MIB), (13, first + 8 * MIB), (14, first + 12 * MIB):
            allocator.allocate(block, 2 * MIB)
            assert allocator._live[block].address == address
        allocator.allocate(15, 2 * MIB)
        assert allocator._live[15].address == second + 18 * MIB

    @pytest.mark.parametrize(
        ("release", "rule"),
        [
            ((2, 6), "lowest"),
            ((2, 11), "lowest"),
            ((2, 12), "oldest"),
            ((2, 13), "oldest_segment"),
            ((2, 15), "oldest_segment"),
        ],
    )
    def test_the_rule_of_a_release(self, release: tuple[int, int], rule: str) -> None:
        assert equal_blocks_of(release) == rule


@pytest.mark.parametrize("order", [(0, 1, 2), (2, 1, 0), (0, 2, 1), (1, 0, 2)])
def test_free_neighbours_become_one_block_again(order: tuple[int, ...]) -> None:
    allocator = _allocator()
    _fill(allocator, 5 * MIB, 5 * MIB, 5 * MIB)
    assert allocator.reserved_bytes == 20 * MIB
    for block in order:
        allocator.free(block)
    assert _blocks(allocator) == [[(20 * MIB, False)]]


def test_neighbours_in_different_segments_are_not_merged() -> None:
    allocator = _allocator()
    _fill(allocator, 16 * MIB, 16 * MIB)
    allocator.free(0)
    allocator.free(1)
    assert _blocks(allocator) == [[(16 * MIB, False)], [(16 * MIB, False)]]
    allocator.allocate(2, 32 * MIB)  # so together they serve nothing
    assert allocator.reserved_bytes == 64 * MIB


def test_the_cache_keeps_what_is_free_until_it_is_emptied() -> None:
    allocator = _allocator()
    _fill(allocator, 16 * MIB, 3 * MIB, 4 * KIB)
    allocator.free(0)
    allocator.free(2)
    assert (allocator.allocated_bytes, allocator.reserved_bytes) == (3 * MIB, 38 * MIB)
    allocator.empty_cache()  # the segment with 3 MiB in use stays whole
    assert (allocator.allocated_bytes, allocator.reserved_bytes) == (3 * MIB, 20 * MIB)


def test_a_full_device_gives_cached_segments_back_and_tries_again() -> None:
    allocator = _allocator(capacity=40 * MIB)
    _fill(allocator, 16 * MIB, 12 * MIB)
    allocator.free(0)
    allocator.allocate(2, 20 * MIB)
    assert allocator.retries == 1
    assert allocator.reserved_bytes == 32 * MIB
    assert allocator.peak_reserved_bytes == 32 * MIB


def test_without_anything_to_give_back_memory_runs_out() -> None:
    allocator = _allocator(capacity=50 * MIB)
    _fill(allocator, 16 * MIB, 3 * MIB)
    with pytest.raises(OutOfDeviceMemory) as failure:
        allocator.allocate(2, 24 * MIB + 1)
    record = failure.value.record
    assert (record.tensor_bytes, record.requested_bytes) == (24 * MIB + 1, 26 * MIB)
    assert (record.allocated_bytes, record.reserved_bytes) == (19 * MIB, 36 * MIB)
    assert (record.free_bytes, record.limit_bytes) == (14 * MIB, None)
    assert allocator.retries == 1
    allocator.allocate(2, 14 * MIB)  # the caller may go on with less
    assert allocator.allocated_bytes == 33 * MIB


def test_a_partly_used_segment_cannot_be_given_back() -> None:
    allocator = _allocator(capacity=40 * MIB)
    _fill(allocator, 18 * MIB, 2 * MIB)  # segments of 18 and of 20 MiB
    allocator.free(0)
    allocator.allocate(2, 16 * MIB)  # from the 18 MiB; 2 MiB beside it are free now
    with pytest.raises(OutOfDeviceMemory):
        allocator.allocate(3, 19 * MIB)  # 18 MiB are free beside block 1, 2 on the device


def test_the_limit_counts_what_is_reserved() -> None:
    allocator = _allocator(capacity=100 * MIB, limit=30 * MIB)
    allocator.allocate(0, 3 * MIB)
    with pytest.raises(OutOfDeviceMemory) as failure:
        allocator.allocate(1, 18 * MIB)  # from a segment of 20 MiB only 3 are used, but it counts
    record = failure.value.record
    assert (record.limit_bytes, record.free_bytes) == (30 * MIB, 80 * MIB)
    allocator.allocate(2, 17 * MIB)
    allocator.allocate(3, 10 * MIB)  # exactly the limit
    assert allocator.reserved_bytes == 30 * MIB


def test_peaks_start_anew_from_the_present() -> None:
    allocator = _allocator()
    _fill(allocator, 16 * MIB, 4 * MIB)
    allocator.free(0)
    allocator.empty_cache()
    assert (allocator.peak_allocated_bytes, allocator.peak_reserved_bytes) == (20 * MIB, 36 * MIB)
    allocator.reset_peaks()
    assert (allocator.peak_allocated_bytes, allocator.peak_reserved_bytes) == (4 * MIB, 20 * MIB)


class TestMaxSplitSize:
    """Blocks of that size and above are never split."""

    def test_an_oversize_block_does_not_serve_a_smaller_request(self) -> None:
        allocator = _allocator("max_split_size_mb:32")
        allocator.allocate(0, 32 * MIB)
        allocator.free(0)
        allocator.allocate(1, 31 * MIB)
        assert allocator.reserved_bytes == 64 * MIB

    def test_an_oversize_request_takes_a_block_that_is_less_than_20_mib_larger(self) -> None:
        allocator = _allocator("max_split_size_mb:32")
        allocator.allocate(0, 60 * MIB)
        allocator.free(0)
        allocator.allocate(1, 40 * MIB)  # exactly 20 MiB too large
        assert allocator.reserved_bytes == 100 * MIB
        allocator.allocate(2, 40 * MIB + 512)
        assert allocator.reserved_bytes == 100 * MIB
        assert allocator.allocated_bytes == 100 * MIB  # all of the 60 MiB, unsplit

    def test_the_excess_is_a_setting(self) -> None:
        allocator = _allocator("max_split_size_mb:32,max_non_split_rounding_mb:64")
        allocator.allocate(0, 100 * MIB)
        allocator.free(0)
        allocator.allocate(1, 37 * MIB)
        assert allocator.reserved_bytes == 100 * MIB

    def test_a_request_below_it_may_still_split_what_it_gets(self) -> None:
        allocator = _allocator("max_split_size_mb:32")
        allocator.allocate(0, 30 * MIB)
        allocator.free(0)
        allocator.allocate(1, 16 * MIB)
        assert _blocks(allocator) == [[(16 * MIB, True), (14 * MIB, False)]]

    def test_on_a_full_device_the_smallest_sufficient_oversize_block_goes_first(self) -> None:
        allocator = _allocator("max_split_size_mb:32", capacity=200 * MIB)
        _fill(allocator, 90 * MIB, 60 * MIB, 16 * MIB)
        for block in (0, 1, 2):
            allocator.free(block)
        allocator.allocate(3, 36 * MIB)
        # 60 MiB were given back and no more: this is not counted as a retry.
        assert allocator.retries == 0
        assert [blocks[0][0] for blocks in _blocks(allocator)] == [90 * MIB, 16 * MIB, 36 * MIB]

    def test_or_several_of_them_the_largest_first(self) -> None:
        allocator = _allocator("max_split_size_mb:32", capacity=160 * MIB)
        _fill(allocator, 40 * MIB, 60 * MIB, 50 * MIB)
        for block in (0, 1, 2):
            allocator.free(block)
        allocator.allocate(3, 104 * MIB)
        assert allocator.retries == 0
        assert [blocks[0][0] for blocks in _blocks(allocator)] == [40 * MIB, 104 * MIB]


class TestGarbageCollection:
    """Free segments unused for long go back, once more than a share of the limit is reserved."""

    SETTINGS = "garbage_collection_threshold:0.5"

    def _aged(self, threshold: str, limit: int) -> CachingAllocator:
        """20 MiB free for two lookups of the large pool, 24 MiB for one, at the next miss."""
        allocator = _allocator(threshold, limit=limit)
        _fill(allocator, 20 * MIB, 22 * MIB, 24 * MIB)
        allocator.free(0)
        allocator.free(2)
        allocator.allocate(3, 24 * MIB)
        allocator.free(3)
        allocator.allocate(4, 26 * MIB)
        return allocator

    def test_it_takes_blocks_older_than_the_average(self) -> None:
        allocator = self._aged("garbage_collection_threshold:0.5", 100 * MIB)
        # 66 MiB are reserved, 16 above the threshold; the ages are 2 and 1, their average 1.5.
        assert [blocks[0] for blocks in _blocks(allocator)] == [
            (22 * MIB, True), (24 * MIB, False), (26 * MIB, True),
        ]  # fmt: skip
        assert allocator.retries == 0

    def test_it_goes_on_until_enough_is_reclaimed(self) -> None:
        allocator = self._aged("garbage_collection_threshold:0.3", 100 * MIB)
        # 36 MiB above the threshold: the first round reclaims 20, the second the rest.
        assert _blocks(allocator) == [[(22 * MIB, True)], [(26 * MIB, True)]]

    def test_it_takes_all_blocks_of_an_age_also_when_one_is_enough(self) -> None:
        allocator = _allocator(self.SETTINGS, limit=100 * MIB)
        _fill(allocator, 20 * MIB, 22 * MIB, 20 * MIB)
        allocator.free(0)
        allocator.free(2)
        allocator.allocate(3, 26 * MIB)
        assert _blocks(allocator) == [[(22 * MIB, True)], [(26 * MIB, True)]]

    def test_below_the_threshold_nothing_happens(self) -> None:
        allocator = _allocator(self.SETTINGS, limit=100 * MIB)
        allocator.allocate(0, 40 * MIB)
        allocator.free(0)
        allocator.allocate(1, 44 * MIB)
        assert allocator.reserved_bytes == 84 * MIB

    def test_without_a_limit_nothing_happens(self) -> None:
        allocator = _allocator(self.SETTINGS, capacity=100 * MIB)
        allocator.allocate(0, 60 * MIB)
        allocator.free(0)
        allocator.allocate(1, 37 * MIB)
        allocator.allocate(2, 40 * MIB)
        assert allocator.reserved_bytes == 100 * MIB


def test_a_block_that_is_not_alive_cannot_die() -> None:
    allocator = _allocator()
    allocator.allocate(0, 512)
    allocator.free(0)
    with pytest.raises(KeyError):
        allocator.free(0)
