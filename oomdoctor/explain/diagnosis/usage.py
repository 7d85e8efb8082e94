"""What the figures of one message say together about who holds the memory of the device."""

from __future__ import annotations

from oomdoctor.explain.reading.parse import OF_PYTORCH
from oomdoctor.records.job.measurement import OomEvent
from oomdoctor.units import GIB

# WSL and Windows print a negative difference as unsigned.
UNDERFLOW = "17179869184.00 GiB"

# What a process may hold outside PyTorch's allocator: the CUDA context with its loaded kernels (0.3
# to 0.8 GiB), cuBLAS and cuDNN, and the buffers of NCCL, which are up to 2 GiB with many channels.
# What is larger than this holds something else too.
_LARGEST_CONTEXT = 3 * GIB


def unallocated(event: OomEvent) -> int | None:
    """Reserved by the allocator but not allocated; also from the older `reserved in total`."""
    if event.reserved_unallocated_bytes is not None:
        return event.reserved_unallocated_bytes
    if event.reserved_bytes is None or event.allocated_bytes is None:
        return None
    if "cached" in event.message:  # torch 1.0 to 1.3: "cached" does not include "allocated"
        return event.reserved_bytes
    return max(0, event.reserved_bytes - event.allocated_bytes)


def reserved(event: OomEvent) -> int | None:
    """Everything that the allocator of this process holds.

    Private pools are a part of what is allocated, as CUDACachingAllocator.cpp prints it.
    """
    if event.allocated_bytes is None:
        return event.reserved_bytes
    return event.allocated_bytes + (unallocated(event) or 0)


def others(event: OomEvent) -> int | None:
    """What other processes hold: as printed, or what is neither free nor ours.

    If the message does not print our own use, as up to torch 2.0, the rest has our context and
    NCCL's buffers too: what those explain is not counted as others'.
    """
    if event.other_processes_bytes is not None:
        return event.other_processes_bytes
    process, capacity, free = event.process_bytes, event.capacity_bytes, event.free_bytes
    own = process if process is not None else reserved(event)
    unseen = process is None and "this process has 0 bytes" in event.message  # in a container
    if event.dialect not in OF_PYTORCH or UNDERFLOW in event.message or unseen:
        return None
    if capacity is None or free is None or own is None:
        return None
    rest = capacity - free - own
    slack = 0 if process is not None else _LARGEST_CONTEXT
    return rest if rest > slack else 0 if rest >= 0 else None


def missing(event: OomEvent) -> int | None:
    """How many more bytes would have been enough; None if the message does not say."""
    if event.requested_bytes is None:
        return None
    room, held = event.free_bytes, reserved(event)
    if event.allowed_bytes is not None and held is not None:
        left = max(0, event.allowed_bytes - held)
        room = left if room is None else min(room, left)
    return None if room is None else max(0, event.requested_bytes - room)


def outside_allocator(event: OomEvent) -> int | None:
    """What this process holds outside PyTorch's allocator; None if the message does not say."""
    process, held = event.process_bytes, reserved(event)
    if process is None or held is None or event.allocated_bytes is None:
        return None
    outside = process - held
    return outside if 0 < outside < _LARGEST_CONTEXT and UNDERFLOW not in event.message else None
