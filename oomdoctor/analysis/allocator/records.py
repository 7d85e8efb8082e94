"""The results of a replay, and the exception of the allocator. All sizes are in bytes."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple


@dataclass(frozen=True, slots=True)
class OutOfMemory:
    """The state when a request failed, after all cached memory was released.

    `requested_bytes` is what PyTorch prints: the segment it requested from the device.
    `tensor_bytes` is what the caller requested. `free_bytes` is what the device had left, None if
    its capacity is unknown. `limit_bytes` is the memory fraction, None without one.
    """

    requested_bytes: int
    tensor_bytes: int
    free_bytes: int | None
    reserved_bytes: int
    allocated_bytes: int
    limit_bytes: int | None


class OutOfDeviceMemory(Exception):  # noqa: N818 - torch's own is called OutOfMemoryError
    """The device has too little memory for a request. The allocator stays usable."""

    def __init__(self, record: OutOfMemory) -> None:
        super().__init__(f"cannot reserve {record.requested_bytes} bytes")
        self.record = record


@dataclass(frozen=True, slots=True)
class Fragmentation:
    """The allocator at one moment; memory that is reserved but not allocated is cached."""

    allocated_bytes: int
    reserved_bytes: int
    largest_free_bytes: int

    @property
    def unallocated_bytes(self) -> int:
        return self.reserved_bytes - self.allocated_bytes


class Mark(NamedTuple):
    """The window `name` begins at the event with this index; if it `empties`, without a cache."""

    event: int
    name: str
    empties: bool = False


@dataclass(frozen=True, slots=True)
class Window:
    """The peaks between two marks, as if `reset_peak_memory_stats` was called at its start."""

    name: str
    peak_allocated_bytes: int
    peak_reserved_bytes: int


class Point(NamedTuple):
    """The allocator after the event with this index."""

    event: int
    allocated_bytes: int
    reserved_bytes: int


class Span(NamedTuple):
    """A part of a segment: one block, in use or free."""

    address: int
    size: int
    in_use: bool


@dataclass(frozen=True, slots=True)
class Segment:
    """Memory reserved from the device, with its blocks by address.

    Unmapped parts of an expandable segment are left out.
    """

    small: bool
    expandable: bool
    spans: tuple[Span, ...]


@dataclass(frozen=True, slots=True)
class Replay:
    """What a sequence of births and deaths does to an allocator.

    `peak_allocated_bytes` is that of `torch.cuda.max_memory_allocated`: the sum of the blocks,
    including up to 1 MiB per block that was not worth splitting. If the device ran out of memory,
    `failed_at` is the index of the failed event, and everything else describes the time before it.
    `windows` holds those that had begun by then. `curve` is empty unless requested.
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
