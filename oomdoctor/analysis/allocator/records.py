"""The results of a replay, the exception of the allocator and its message. Sizes are in bytes."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

from oomdoctor.units import GIB, KIB, MIB


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
    `windows` holds those that had begun by then.
    """

    peak_allocated_bytes: int
    peak_reserved_bytes: int
    windows: tuple[Window, ...]
    retries: int
    failed_at: int | None
    out_of_memory: OutOfMemory | None

    @property
    def fits(self) -> bool:
        return self.out_of_memory is None


_ADVICE = (
    " If reserved but unallocated memory is large try setting"
    " PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True to avoid"
    " fragmentation.  See documentation for Memory Management "
    " (https://pytorch.org/docs/stable/notes/cuda.html#environment-variables)"
)


def out_of_memory_message(record: OutOfMemory, gpu: int = 0, total_bytes: int | None = None) -> str:
    """The message of torch 2.6 (`DeviceCachingAllocator::malloc`) for a process alone on its GPU.

    `total_bytes` is the capacity of the device by the driver; None takes it from the record. What
    is neither free nor reserved counts as memory of this process outside PyTorch. Without a
    capacity in the record, all that is not reserved counts as free.
    """
    free = record.free_bytes
    if total_bytes is None:
        total_bytes = record.reserved_bytes + (free or 0)
    if free is None:
        free = total_bytes - record.reserved_bytes
    limit = record.limit_bytes
    allowed = "" if limit is None else f"{format_size(limit)} allowed; "
    unallocated = record.reserved_bytes - record.allocated_bytes
    return (
        f"CUDA out of memory. Tried to allocate {format_size(record.requested_bytes)}."
        f" GPU {gpu} has a total capacity of {format_size(total_bytes)}"
        f" of which {format_size(free)} is free."
        f" Including non-PyTorch memory, this process has {format_size(total_bytes - free)}"
        f" memory in use. {allowed}"
        f"Of the allocated memory {format_size(record.allocated_bytes)} is allocated by PyTorch,"
        f" and {format_size(unallocated)} is reserved by PyTorch but unallocated.{_ADVICE}"
    )


def format_size(size: int) -> str:
    """A size as PyTorch prints it (`format_size`): `20.00 MiB`, but `1024.00 KiB` for 1 MiB."""
    if size <= KIB:
        return f"{size} bytes"
    for unit, name in ((KIB, "KiB"), (MIB, "MiB")):
        if size <= unit * 1024:
            return f"{size / unit:.2f} {name}"
    return f"{size / GIB:.2f} GiB"
