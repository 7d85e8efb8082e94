"""The allocator against a slow, plain one: the same rules over lists of spans, no index, no links.

After every event both must agree on every span of every segment, on all figures and on failures.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from oomdoctor.analysis.allocator.caching import CachingAllocator
from oomdoctor.analysis.allocator.device import CHUNK, TOP
from oomdoctor.analysis.allocator.records import OutOfDeviceMemory
from oomdoctor.analysis.allocator.settings import AllocatorSettings
from oomdoctor.analysis.allocator.sizes import round_size
from oomdoctor.units import GIB, MIB

FREE, UNMAPPED = -1, -2


@dataclass
class _Span:
    start: int
    size: int
    owner: int
    born: int = 0


@dataclass
class _Segment:
    small: bool
    spans: list[_Span]


@dataclass
class _Reference:
    """`DeviceCachingAllocator` by the letter; every question is a walk over all spans."""

    capacity: int
    settings: AllocatorSettings
    limit: int | None
    segments: list[_Segment] = field(default_factory=list)
    # Segments with the address and bytes that the driver gave them, in chunks, the newest last.
    chunks: list[tuple[int, int, list[tuple[_Segment | None, int, int]]]] = field(
        default_factory=list
    )
    retries: int = 0
    lookups: dict[bool, int] = field(default_factory=lambda: {True: 0, False: 0})

    def total(self, *, used_only: bool) -> int:
        return sum(
            span.size
            for segment in self.segments
            for span in segment.spans
            if (span.owner >= 0 if used_only else span.owner != UNMAPPED)
        )

    def malloc(self, block: int, asked: int) -> bool:
        size = _rounded(asked, self.settings.roundup_power2_divisions)
        small = size <= MIB
        found = self._cached(size, small) or self._from_device(size, small)
        if found is None:
            return False
        segment, span = found
        left = span.size - size
        if small or self.settings.expandable_segments:
            split = left >= 512
        else:
            split = left > MIB and size < self._max_split
        if split:
            rest = _Span(span.start + size, left, FREE, self.lookups[small])
            segment.spans.insert(segment.spans.index(span) + 1, rest)
            span.size = size
        span.owner = block
        return True

    def free(self, block: int) -> None:
        for segment in self.segments:
            for span in segment.spans:
                if span.owner == block:
                    span.owner, span.born = FREE, self.lookups[segment.small]
                    _merge(segment, self.lookups[segment.small])
                    return

    @property
    def _max_split(self) -> int:
        return self.settings.max_split_size_bytes or 2**63

    @property
    def _collects(self) -> bool:
        return self.limit is not None and self.settings.garbage_collection_threshold is not None

    def _cached(self, size: int, small: bool) -> tuple[_Segment, _Span] | None:
        if self._collects:
            self.lookups[small] += 1
        fits = [pair for pair in self._free(small) if pair[1].size >= size]
        if not fits:
            return None
        at = 0
        if self.settings.expandable_segments:
            while at + 1 < len(fits) and _reach(*fits[at + 1]) < _reach(*fits[at]):
                at += 1
        span = fits[at][1]
        excess = self.settings.max_non_split_rounding_bytes or self.settings.large_segment_bytes
        if size < self._max_split and span.size >= self._max_split:
            return None
        if size >= self._max_split and span.size >= size + excess:
            return None
        return fits[at]

    def _free(self, small: bool) -> list[tuple[_Segment, _Span]]:
        pairs = [(s, span) for s in self.segments if s.small == small for span in s.spans]
        return sorted(
            (pair for pair in pairs if pair[1].owner == FREE),
            key=lambda pair: (pair[1].size, pair[1].start),
        )

    def _from_device(self, size: int, small: bool) -> tuple[_Segment, _Span] | None:
        if self._collects:
            self._collect()
        if small:
            segment_size = 2 * MIB
        elif size < 10 * MIB:
            segment_size = self.settings.large_segment_bytes
        else:
            segment_size = (size + 2 * MIB - 1) // (2 * MIB) * (2 * MIB)
        found = self._try(size, small, segment_size)
        if found is None and self._release_oversize(size, small):
            found = self._try(size, small, segment_size)
        if found is None:
            self.empty_cache()
            self.retries += 1
            found = self._try(size, small, segment_size)
        return found

    def _try(self, size: int, small: bool, segment_size: int) -> tuple[_Segment, _Span] | None:
        reserved = self.total(used_only=False)
        if self.limit is not None and reserved + segment_size > self.limit:
            return None
        if self.settings.expandable_segments:
            return self._grow(size, small)
        if reserved + segment_size > self.capacity:
            return None
        segment = _Segment(small, [])
        segment.spans = [_Span(self._address(segment_size, segment), segment_size, FREE)]
        self.segments.append(segment)
        return segment, segment.spans[0]

    def _address(self, size: int, segment: _Segment | None) -> int:
        """The newest chunk with room, else a new one: the highest gap that is larger."""
        for _, _, placed in self.chunks:
            placed[:] = [p for p in placed if p[0] is None or p[0] is segment or p[0].spans]
        self.chunks = [chunk for chunk in self.chunks if chunk[2]]
        for first, end, placed in reversed(self.chunks):
            taken = sorted((start, start + length) for _, start, length in placed)
            for low, high in _gaps(first, end, taken):
                if high - low >= size:
                    placed.append((segment, low, size))
                    return low
        room = -(-size // CHUNK) * CHUNK
        taken = sorted((first, end) for first, end, _ in self.chunks)
        high = max(high for low, high in _gaps(0, TOP, taken) if high - low > room)
        self.chunks.append((high - room, high, [(segment, high - room, size)]))
        return high - room

    def _grow(self, size: int, small: bool) -> tuple[_Segment, _Span] | None:
        page = 2 * MIB if small else self.settings.large_segment_bytes
        segment, at = self._room(size, small, page)
        while segment.spans[at].owner == UNMAPPED or segment.spans[at].size < size:
            grows = at if segment.spans[at].owner == UNMAPPED else at + 1
            have = 0 if grows == at else segment.spans[at].size
            space = segment.spans[grows]
            mapped = -(-min(size - have, space.size) // page) * page
            if self.total(used_only=False) + mapped > self.capacity:
                return None
            rest = _Span(space.start + mapped, space.size - mapped, UNMAPPED)
            space.size, space.owner = mapped, FREE
            if rest.size:
                segment.spans.insert(grows + 1, rest)
            start = segment.spans[at].start
            _merge(segment, 0)
            at = next(i for i, s in enumerate(segment.spans) if s.start <= start < s.start + s.size)
        return segment, segment.spans[at]

    def _room(self, size: int, small: bool, page: int) -> tuple[_Segment, int]:
        for segment in sorted(self.segments, key=lambda segment: segment.spans[0].start):
            for at, span in enumerate(segment.spans):
                if segment.small != small or span.owner != UNMAPPED:
                    continue
                start = at - 1 if at and segment.spans[at - 1].owner == FREE else at
                room = 0
                for following in segment.spans[start:]:
                    if following.owner >= 0:
                        break
                    room += following.size
                if room >= size:
                    return segment, start
        space = -(-(self.capacity * 9 // 8) // page) * page
        address = -(-self._address(space + page, None) // page) * page
        self.segments.append(_Segment(small, [_Span(address, space, UNMAPPED)]))
        return self.segments[-1], 0

    def empty_cache(self) -> None:
        for segment in self.segments:
            if not self.settings.expandable_segments:
                if len(segment.spans) == 1 and segment.spans[0].owner == FREE:
                    segment.spans = []
                continue
            page = 2 * MIB if segment.small else self.settings.large_segment_bytes
            free = [span for span in segment.spans if span.owner == FREE]
            for span in free:
                _unmap_pages(segment, span, page)
            _merge(segment, 0)
            # A segment that never got memory has no free span and stays.
            if free and all(span.owner == UNMAPPED for span in segment.spans):
                segment.spans = []
        self._drop_empty()

    def _drop_empty(self) -> None:
        self.segments = [segment for segment in self.segments if segment.spans]

    def _collect(self) -> None:
        threshold = self.settings.garbage_collection_threshold
        assert threshold is not None and self.limit is not None
        target = self.total(used_only=False) - int(threshold * self.limit)
        if target <= 0 or self.settings.expandable_segments:
            return
        whole = [pair for pair in self._free(False) if len(pair[0].spans) == 1]
        total_age = sum(self.lookups[False] - span.born for _, span in whole)
        count, reclaimed, freed = len(whole), 0, True
        while reclaimed < target and freed and count > 0:
            threshold_age, freed = total_age / count, False
            for segment, span in whole:
                age = self.lookups[False] - span.born
                if segment.spans and age >= threshold_age:
                    freed = True
                    reclaimed += span.size
                    total_age -= age
                    count -= 1
                    segment.spans = []
        self._drop_empty()

    def _release_oversize(self, size: int, small: bool) -> bool:
        if self.settings.max_split_size_bytes is None or self.settings.expandable_segments:
            return False
        wanted = max(size, self._max_split)
        free = self._free(small)
        alone = [pair for pair in free if pair[1].size >= wanted]
        if alone:
            alone[0][0].spans = []
            self._drop_empty()
            return True
        released = 0
        for segment, span in reversed(free):
            if released >= wanted or span.size < self._max_split:
                break
            released += span.size
            segment.spans = []
        self._drop_empty()
        return released >= wanted


def _rounded(size: int, divisions: tuple[int, ...]) -> int:
    if divisions and size >= 512:
        interval = min(max(len(bin(size)) - 3 - 20, 0), 15)
        steps = divisions[interval]
        if steps > 1 and size > 512 * steps:
            floor = 1
            while floor * 2 <= size:
                floor *= 2
            while floor < size:
                floor += (1 << (len(bin(size)) - 3)) // steps
            return floor
    return max(512, (size + 511) // 512 * 512)


def _reach(segment: _Segment, span: _Span) -> int:
    beyond = segment.spans[segment.spans.index(span) + 1 :]
    return span.size + (beyond[0].size if beyond and beyond[0].owner == UNMAPPED else 0)


def _merge(segment: _Segment, born: int) -> None:
    merged: list[_Span] = []
    for span in segment.spans:
        if merged and span.owner < 0 and merged[-1].owner == span.owner:
            merged[-1].size += span.size
            merged[-1].born = born
        else:
            merged.append(span)
    segment.spans = merged


def _gaps(first: int, end: int, taken: list[tuple[int, int]]) -> list[tuple[int, int]]:
    """What is left between `first` and `end`, by address."""
    bounds = [first, *(bound for pair in taken for bound in pair), end]
    pairs = zip(bounds[::2], bounds[1::2], strict=True)
    return [(low, high) for low, high in pairs if low < high]


def _unmap_pages(segment: _Segment, span: _Span, page: int) -> None:
    first = -(-span.start // page) * page
    last = (span.start + span.size) // page * page
    if first >= last:
        return
    at = segment.spans.index(span)
    parts = [
        _Span(span.start, first - span.start, FREE),
        _Span(first, last - first, UNMAPPED),
        _Span(last, span.start + span.size - last, FREE),
    ]
    segment.spans[at : at + 1] = [part for part in parts if part.size]


BOUNDARIES = (
    1, 511, 512, 513, MIB - 512, MIB, MIB + 1, 3 * MIB, 10 * MIB - 512, 10 * MIB, 10 * MIB + 1,
    11 * MIB, 19 * MIB, 19 * MIB - 512, 20 * MIB, 21 * MIB, 40 * MIB, 41 * MIB,
)  # fmt: skip
SIZES = st.one_of(st.sampled_from(BOUNDARIES), st.integers(1, 2 * MIB), st.integers(MIB, 60 * MIB))
# Above zero: the size of a new block. Below: a live block dies, counted from the youngest.
# Zero: the cache is emptied.
STEPS = st.lists(st.one_of(SIZES, st.integers(-8, -1), st.just(0)), min_size=1, max_size=60)
CONFIGURATIONS = {
    "default": ("", None),
    "limit": ("", 140 * MIB),
    "rounding": ("roundup_power2_divisions:[1:4,4:8,>:2]", None),
    "max_split": ("max_split_size_mb:20", None),
    "max_split_rounding": ("max_split_size_mb:24,max_non_split_rounding_mb:30", None),
    "large_segment": ("large_segment_size_mb:32", None),
    "gc": ("garbage_collection_threshold:0.3", 180 * MIB),
    "gc_max_split": ("garbage_collection_threshold:0.5,max_split_size_mb:20", 150 * MIB),
    "expandable": ("expandable_segments:True", None),
    "expandable_limit": ("expandable_segments:True,garbage_collection_threshold:0.5", 150 * MIB),
    "expandable_max_split": ("expandable_segments:True,max_split_size_mb:21", None),
}


@pytest.mark.parametrize("name", CONFIGURATIONS)
@settings(max_examples=120)
@given(steps=STEPS, capacity=st.sampled_from((100 * MIB, 200 * MIB, 4 * GIB)))
def test_the_fast_allocator_is_the_plain_one(name: str, steps: list[int], capacity: int) -> None:
    text, limit = CONFIGURATIONS[name]
    rules = AllocatorSettings.parse(text)
    fast = CachingAllocator(capacity, rules, limit_bytes=limit)
    plain = _Reference(capacity, rules, limit)
    live: list[int] = []
    for number, step in enumerate(steps):
        if step > 0:
            _allocate_in_both(fast, plain, number, step, live)
        elif step == 0:
            fast.empty_cache()
            plain.empty_cache()
        elif live:
            block = live.pop(step % len(live))
            fast.free(block)
            plain.free(block)
        assert _spans(fast) == _plain_spans(plain)
        assert fast.allocated_bytes == plain.total(used_only=True)
        assert fast.reserved_bytes == plain.total(used_only=False)
        assert fast.retries == plain.retries


def _allocate_in_both(
    fast: CachingAllocator, plain: _Reference, block: int, size: int, live: list[int]
) -> None:
    served = plain.malloc(block, size)
    if served:
        fast.allocate(block, size)
        live.append(block)
    else:
        with pytest.raises(OutOfDeviceMemory):
            fast.allocate(block, size)


def _spans(allocator: CachingAllocator) -> list[tuple[int, int, bool]]:
    return [tuple(span) for segment in allocator.segments() for span in segment.spans]


def _plain_spans(plain: _Reference) -> list[tuple[int, int, bool]]:
    spans = [span for segment in plain.segments for span in segment.spans]
    return [
        (span.start, span.size, span.owner >= 0)
        for span in sorted(spans, key=lambda span: span.start)
        if span.owner != UNMAPPED
    ]


@pytest.mark.parametrize("name", CONFIGURATIONS)
@settings(max_examples=60)
@given(steps=STEPS)
def test_what_always_holds(name: str, steps: list[int]) -> None:
    text, limit = CONFIGURATIONS[name]
    rules = AllocatorSettings.parse(text)
    allocator = CachingAllocator(300 * MIB, rules, limit_bytes=limit)
    # Expandable segments round up to a page after the limit was looked at.
    page = rules.large_segment_bytes if rules.expandable_segments else 0
    highest = 300 * MIB if limit is None else limit + page
    live: dict[int, int] = {}
    events: list[tuple[int, int]] = []
    for number, step in enumerate(steps):
        if step > 0:
            try:
                allocator.allocate(number, step)
            except OutOfDeviceMemory as failure:
                _check_failure(failure, allocator, limit)
                continue
            live[number] = step
            events.append((number, step))
        elif live:
            block = list(live)[step % len(live)]
            allocator.free(block)
            events.append((block, -live.pop(block)))
        _check_spans(allocator)
        assert sum(live.values()) <= allocator.allocated_bytes <= allocator.reserved_bytes
        assert allocator.reserved_bytes <= min(300 * MIB, highest)
        assert allocator.peak_allocated_bytes >= allocator.allocated_bytes
    _check_floor(events, allocator, rules)
    for block in live:
        allocator.free(block)
    assert allocator.allocated_bytes == 0
    assert all(len(s.spans) == 1 for s in allocator.segments() if not s.expandable)
    allocator.empty_cache()
    assert (allocator.reserved_bytes, allocator.segments()) == (0, ())


def _check_failure(
    failure: OutOfDeviceMemory, allocator: CachingAllocator, limit: int | None
) -> None:
    record = failure.record
    assert record.requested_bytes >= record.tensor_bytes
    assert record.free_bytes == 300 * MIB - allocator.reserved_bytes
    assert record.reserved_bytes == allocator.reserved_bytes
    assert record.allocated_bytes == allocator.allocated_bytes
    assert record.limit_bytes == limit
    # Nothing was left in the cache that could have been given back.
    before = allocator.reserved_bytes
    allocator.empty_cache()
    assert allocator.reserved_bytes == before


def _check_spans(allocator: CachingAllocator) -> None:
    end, total, used = 0, 0, 0
    for segment in allocator.segments():
        was_free = False
        for address, size, in_use in segment.spans:
            assert address >= end and size > 0 and size % 512 == 0
            adjacent_free = was_free and not in_use and address == end
            assert not adjacent_free, "two free neighbours were not merged"
            end, was_free = address + size, not in_use
            total += size
            used += size if in_use else 0
    assert (total, used) == (allocator.reserved_bytes, allocator.allocated_bytes)


def _largest_sum(events: list[tuple[int, int]], rules: AllocatorSettings) -> int:
    """The largest sum of rounded sizes at any moment: a floor under the peak of allocated bytes.

    What is left of a large block that is not worth splitting comes on top: at most 1 MiB for each.
    """
    live: dict[int, int] = {}
    peak = 0
    for block, size in events:
        if size > 0:
            live[block] = round_size(size, rules.roundup_power2_divisions)
            peak = max(peak, sum(live.values()))
        else:
            del live[block]
    return peak


def _check_floor(
    events: list[tuple[int, int]], allocator: CachingAllocator, rules: AllocatorSettings
) -> None:
    floor = _largest_sum(events, rules)
    assert floor <= allocator.peak_allocated_bytes
    if rules.max_split_size_bytes is None:
        births = sum(size > MIB for _, size in events)
        assert allocator.peak_allocated_bytes <= floor + births * MIB
        if rules.expandable_segments:
            assert allocator.peak_allocated_bytes == floor
