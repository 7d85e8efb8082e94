"""The device under the allocator: its bytes, and the addresses that cudaMalloc returns.

Addresses decide between free blocks of equal size. The rules were derived from 17 recorded runs of
others (`tests/data/allocator_traces`), with drivers of 2023 to 2026:

- The driver takes address space in chunks: whole multiples of 32 MiB, aligned to 32 MiB.
- A new chunk goes to the highest free range that is large enough, at its upper end. So in a fresh
  process chunks come downwards.
- A segment starts its chunk. What is left of the chunk, and what is given back inside it, takes
  later segments that fit: the newest chunk first, its lowest address first.
- A chunk without segments is free again.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from dataclasses import dataclass, field

from oomdoctor.units import MIB

CHUNK = 32 * MIB
TOP = 2**59  # above anything that a run takes; below `pool.ADDRESS_BITS`


@dataclass(slots=True)
class Chunk:
    """Address space with segments; `holes` are its free ranges as (first, end), by address."""

    number: int
    first: int
    end: int
    holes: list[tuple[int, int]] = field(default_factory=list)

    @property
    def largest_hole(self) -> int:
        return max((end - first for first, end in self.holes), default=0)


class AddressSpace:
    """Places segments as the driver does.

    Invariants: `_free` has the ranges outside all chunks as (first, end), by address, and no two
    touch. `_open` has the numbers of the chunks with holes, ascending, by their largest hole.
    """

    def __init__(self) -> None:
        self._free = [(0, TOP)]
        self._chunks: dict[int, Chunk] = {}
        self._open: dict[int, list[int]] = {}
        self._holder: dict[int, int] = {}  # address of a segment -> number of its chunk
        self._made = 0

    def place(self, size: int) -> int:
        """The address of a new segment."""
        numbers = [numbers_of[-1] for hole, numbers_of in self._open.items() if hole >= size]
        chunk = self._chunks[max(numbers)] if numbers else self._new_chunk(size)
        self._close(chunk)
        at = next(i for i, (first, end) in enumerate(chunk.holes) if end - first >= size)
        first, end = chunk.holes[at]
        chunk.holes[at : at + 1] = [(first + size, end)] if first + size < end else []
        self._reopen(chunk)
        self._holder[first] = chunk.number
        return first

    def remove(self, address: int, size: int) -> None:
        """Give back a segment.

        Raises:
            KeyError: there is no segment at the address.
        """
        chunk = self._chunks[self._holder.pop(address)]
        self._close(chunk)
        _add_range(chunk.holes, address, address + size)
        if chunk.holes == [(chunk.first, chunk.end)]:
            del self._chunks[chunk.number]
            _add_range(self._free, chunk.first, chunk.end)
        else:
            self._reopen(chunk)

    def _new_chunk(self, size: int) -> Chunk:
        room = -(-size // CHUNK) * CHUNK
        at = max(i for i, (first, end) in enumerate(self._free) if end - first > room)
        first, end = self._free[at]
        self._free[at : at + 1] = [(first, end - room)] if end - room > first else []
        self._made += 1
        chunk = Chunk(self._made, end - room, end, [(end - room, end)])
        self._chunks[chunk.number] = chunk
        self._reopen(chunk)
        return chunk

    def _close(self, chunk: Chunk) -> None:
        hole = chunk.largest_hole
        if hole:
            alike = self._open[hole]
            del alike[bisect_left(alike, chunk.number)]
            if not alike:
                del self._open[hole]

    def _reopen(self, chunk: Chunk) -> None:
        if chunk.largest_hole:
            insort(self._open.setdefault(chunk.largest_hole, []), chunk.number)


def _add_range(ranges: list[tuple[int, int]], first: int, end: int) -> None:
    """Add a range to ranges that are sorted and do not touch, and merge it with its neighbours."""
    at = bisect_left(ranges, (first, end))
    if at < len(ranges) and ranges[at][0] == end:
        end = ranges.pop(at)[1]
    if at and ranges[at - 1][1] == first:
        at -= 1
        first = ranges.pop(at)[0]
    ranges.insert(at, (first, end))


# The address space of a device without a capacity: more than any device has.
_UNBOUNDED = 2**42


class Device:
    """Bytes taken from the device (cudaMalloc, cuMemMap) and their peak.

    `addresses` is a model of where the driver places segments.
    """

    __slots__ = ("addresses", "capacity_bytes", "peak_bytes", "taken_bytes")

    def __init__(self, capacity_bytes: int | None, addresses: AddressSpace | None = None) -> None:
        self.capacity_bytes = capacity_bytes
        self.taken_bytes = self.peak_bytes = 0
        self.addresses = addresses or AddressSpace()

    @property
    def free_bytes(self) -> int | None:
        return None if self.capacity_bytes is None else self.capacity_bytes - self.taken_bytes

    def take(self, size: int) -> bool:
        """Take all the bytes, or none."""
        taken = self.taken_bytes + size
        if self.capacity_bytes is not None and taken > self.capacity_bytes:
            return False
        self.taken_bytes = taken
        self.peak_bytes = max(self.peak_bytes, taken)
        return True

    def give_back(self, size: int) -> None:
        self.taken_bytes -= size

    def expandable_space(self, page: int) -> int:
        """Bytes of address space of an expandable segment: 9/8 of the device, in whole pages."""
        total = self.capacity_bytes or _UNBOUNDED
        return -(-(total + total // 8) // page) * page
