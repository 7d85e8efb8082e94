"""Whether a peak fits a device: usable memory, the error of a prediction, and the smallest card.

Plan, probe, run, snapshot and explain ask here, so they agree. Usable memory is what a process may
take of a device: its total or what is free, minus the headroom. The CUDA context is a part of it.
What the allocator holds at the peak plus the context must not exceed it. A prediction that is
closer to the limit than its own error is borderline: neither "fits" nor "does not fit".
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

from oomdoctor.analysis.memory.overhead import (
    context_bytes,
    device_total_bytes,
    shares_host_memory,
    with_nccl,
)
from oomdoctor.records.machine import ByteRange, GpuFacts

USUAL_HEADROOM = 0.02
"""The share of a device that stays free unless the user says otherwise."""
MODERN = (8, 0)
"""Kernels for bfloat16 and flash attention need this compute capability."""
ANY = (0, 0)


def headroom_bytes(available_bytes: int, share: float) -> int:
    """The part of a device's memory that must stay free."""
    return round(available_bytes * share)


def usable_bytes(gpu: GpuFacts, headroom: float) -> int:
    """What a process may use of a card, the CUDA context included."""
    total, _ = device_total_bytes(gpu)
    return total - headroom_bytes(total, headroom)


def capability(text: str | None) -> tuple[int, int]:
    """A compute capability such as 8.6 as numbers that compare; unknown counts as the lowest."""
    if text is None:
        return ANY
    major, minor = (int(part) for part in text.split("."))
    return major, minor


def smallest_card(
    gpus: Iterable[GpuFacts],
    holds: Callable[[int], bool],
    *,
    vendor: str = "NVIDIA",
    least: tuple[int, int] = ANY,
    headroom: float = USUAL_HEADROOM,
    ranks: int = 1,
    context: Callable[[GpuFacts], ByteRange] = context_bytes,
) -> GpuFacts | None:
    """The card with the least memory whose allocator may hold what is needed; None if none may.

    `holds` says whether so many bytes beside context and headroom are enough. Cards below the
    compute capability `least` and those that share the host's memory are left out. With several
    `ranks`, NCCL's buffers take a part of each card.
    """
    for gpu in sorted(gpus, key=lambda one: (one.memory_bytes, device_total_bytes(one)[0])):
        if gpu.vendor != vendor or shares_host_memory(gpu):
            continue
        if least > ANY and capability(gpu.compute_capability) < least:
            continue
        if holds(usable_bytes(gpu, headroom) - with_nccl(context(gpu), ranks).likely):
            return gpu
    return None
