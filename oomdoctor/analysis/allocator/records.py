"""What a replay answers, and the one exception of the allocator. Bytes everywhere."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple


@dataclass(frozen=True, slots=True)
class OutOfMemory:
    """The moment when a request could not be met, after everything cached was given back.

    `requested_bytes` is what PyTorch prints, the segment it asked the device for; `tensor_bytes`
    is what the caller asked for. `free_bytes` is what the device could still give, None when the
    capacity was not told; `limit_bytes` is the memory fraction, None without one.
    """

    requested_bytes: int
    tensor_bytes: int
    free_bytes: int | None
    reserved_bytes: int
    allocated_bytes: int
    limit_bytes: int | None


class OutOfDeviceMemory(Exception):  # noqa: N818 - torch's own is called OutOfMemoryError
    """A request that the device cannot meet. The allocator stays usable."""

    def __init__(self, record: OutOfMemory) -> None:
        super().__init__(f"cannot reserve {record.requested_bytes} bytes")
        self.record = record


@dataclass(frozen=True, slots=True)
class Fragmentation:
    """The allocator at one moment; what is reserved and not allocated is cached."""

    allocated_bytes: int
    reserved_bytes: int
    largest_free_bytes: int

    @property
    def unallocated_bytes(self) -> int:
        return self.reserved_bytes - self.allocated_bytes


class Mark(NamedTuple):
    """From the event with this index on the window `name` begins."""

    event: int
    name: str


@dataclass(frozen=True, slots=True)
class Window:
    """The peaks between two marks, as after `reset_peak_memory_stats` at its beginning."""

    name: str
    peak_allocated_bytes: int
    peak_reserved_bytes: int


class Point(NamedTuple):
    """The allocator after the event with this index."""

    event: int
    allocated_bytes: int
    reserved_bytes: int


class Span(NamedTuple):
    """A stretch of a segment: one block, in use or free."""

    address: int
    size: int
    in_use: bool


@dataclass(frozen=True, slots=True)
class Segment:
    """Memory taken from the device, with its blocks in order of address.

    Stretches of an expandable segment that are not mapped are no part of it.
    """

    small: bool
    expandable: bool
    spans: tuple[Span, ...]


@dataclass(frozen=True, slots=True)
class Replay:
    """What a sequence of births and deaths does to an allocator.

    `peak_allocated_bytes` is what `torch.cuda.max_memory_allocated` says: the sum of the blocks,
    with the up to 1 MiB a block that was not worth splitting. If the device ran out, `failed_at`
    is the index of the event that failed, and everything else tells of the time before it.
    `windows` holds those that had begun by then. `curve` is empty unless it was asked for.
    """

    peak_allocated_bytes: int
    peak_reserved_bytes: int
    at_reserved_peak: Fragmentation
    windows: tuple[Window, ...]
    retries: int
    failed_at: int | None
    out_of_memory: OutOfMemory | None
    curve: tuple[Point, ...]

    @property
    def fits(self) -> bool:
        return self.out_of_memory is None
