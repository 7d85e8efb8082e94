"""The message PyTorch prints when the device runs out of memory."""

from __future__ import annotations

from oomdoctor.analysis.allocator.records import OutOfMemory
from oomdoctor.units import GIB, KIB, MIB

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
