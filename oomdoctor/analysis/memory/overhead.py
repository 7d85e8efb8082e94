"""Device memory that belongs to no tensor: the CUDA context, and what the driver keeps.

The context holds the stacks of all threads that can be resident and the loaded kernels, so its size
grows with the number of multiprocessors. cuBLAS workspaces are not included, because they are
tensors of the allocator. NCCL's buffers depend on the number of ranks, so they are counted apart.
If facts are missing, the figures err towards "does not fit": a wrong "fits" costs a night.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from oomdoctor.package_data import data_of
from oomdoctor.records.job.machine import ByteRange, GpuFacts

_MIB = 1 << 20
# Bytes of the context per resident thread, and a constant part: the middle of the 24 runs in
# tests/data/published_context.json (nvidia-smi's bytes of a process minus PyTorch's reserved bytes,
# both from PyTorch's out-of-memory messages, PyTorch 2.1-2.10). 1 KiB per thread is the default
# stack of a CUDA thread (cudaLimitStackSize); the rest are kernels.
_BYTES_A_THREAD = 2304
_BASE_BYTES = 40 * _MIB
# How far single runs are from that: a process with only a context uses 20% less; libraries with
# their own kernels add up to 70 MiB on any card. Chosen after looking at the runs; one of the 24
# (an A100 with 860 MiB) is still outside.
_LOW, _HIGH = 0.75, 1.2
LIBRARY_BYTES = 64 * _MIB
# What a communicator takes on each GPU: 544 MB for two and 688 MB for more, on four A100 with
# NVLink (github NVIDIA/nccl#964). On eight H100 all memory outside of PyTorch, context included, is
# 1.06 GB (#1685), which agrees. Further process groups and all-to-all take more. Without NVLink
# NCCL opens fewer channels, so it takes less.
_NCCL_PAIR_BYTES, _NCCL_BYTES = 544 * _MIB, 688 * _MIB
# If nothing is known about the card: from the smallest current card to the largest.
_UNKNOWN_BYTES = (100 * _MIB, 520 * _MIB, 950 * _MIB)

_MULTIPROCESSORS: Mapping[str, Sequence[float]] = data_of("multiprocessors.toml")
_LIMITS = 4  # figures of a capability whose units and clock are not in the table

# What Linux drivers keep of nvidia-smi's total: the largest observed, by size of the card (from
# public logs: 220-510 MiB on 8-32 GB, 460-770 on 48-80 GB, 615 on an H200, 720 on a B200).
_KEPT_BYTES = ((32 << 30, 510 * _MIB), (80 << 30, 770 * _MIB))
_KEPT_BYTES_ABOVE = 900 * _MIB
# What the system holds of memory that it shares with the GPU: CUDA saw 101 to 102 of 121.7 GiB free
# after fresh boots of two DGX Spark, without a desktop and with the page cache dropped.
_SYSTEM_BYTES = 20 << 30
# Cards whose driver reports less than the advertised size: ECC takes a sixteenth of GDDR6 and is on
# by default, and the newest cards reserve as much (B300: 268.6 of 288 GiB).
_BELOW_MARKETED = frozenset(
    ("T4", "P40", "A2", "A10", "A10G", "A40", "L4", "L40", "L40S", "B100", "GB200", "GB10")
)


def context_bytes(gpu: GpuFacts | None) -> ByteRange:
    """Device bytes of a training process outside the allocator, on one GPU without NCCL.

    Kernels are loaded when they are used, as since CUDA 11.7 (CUDA_MODULE_LOADING=LAZY).
    """
    threads = _resident_threads(gpu) if gpu is not None else None
    if threads is None:
        low, likely, high = _UNKNOWN_BYTES
        return ByteRange(low, likely, high, "the card's number of multiprocessors is unknown")
    likely = _BASE_BYTES + round(threads * _BYTES_A_THREAD)
    return ByteRange(
        low=round(likely * _LOW),
        likely=likely,
        high=round(likely * _HIGH) + LIBRARY_BYTES,
        source="2.25 KiB per resident thread, from out-of-memory messages of 14 card models",
    )


def context_seen(seen_bytes: int, source: str) -> ByteRange:
    """The context of a process that was seen on the card; `source` says where."""
    return ByteRange(seen_bytes, seen_bytes, seen_bytes + LIBRARY_BYTES, source)


def nccl_bytes(ranks: int) -> int:
    """Device bytes of NCCL's communicator of all ranks, on each GPU; 0 for one rank."""
    if ranks < 2:
        return 0
    return _NCCL_PAIR_BYTES if ranks == 2 else _NCCL_BYTES


def with_nccl(context: ByteRange, ranks: int) -> ByteRange:
    """The context of a process that also has NCCL's buffers."""
    more = nccl_bytes(ranks)
    if not more:
        return context
    source = f"{context.source}; NCCL {more // _MIB} MiB, measured by others on A100"
    return ByteRange(context.low + more, context.likely + more, context.high + more, source)


def device_total_bytes(gpu: GpuFacts) -> tuple[int, str]:
    """The total that torch reports, less what the system holds if it shares it; and the source."""
    seen = gpu.torch_total_bytes
    # On Windows PyTorch reports the driver's whole total; on Linux the driver keeps some of it.
    if seen is not None and (gpu.total_bytes is None or seen < gpu.total_bytes):
        return seen, "the smallest total that PyTorch was seen to report"
    if gpu.vendor != "NVIDIA":
        return (
            gpu.total_bytes or gpu.memory_bytes,
            "the advertised size; the driver may keep some",
        )
    if gpu.total_bytes is not None:
        total, basis = gpu.total_bytes, "the driver's total"
    elif _BELOW_MARKETED & frozenset(gpu.name.split()):
        total, basis = round(gpu.memory_bytes * 15 / 16), "15/16 of the advertised size"
    else:
        total, basis = gpu.memory_bytes, "the advertised size"
    if gpu.shares_host_memory:
        return total - _SYSTEM_BYTES, f"{basis} minus the 20 GiB that the system may hold"
    kept = next((b for limit, b in _KEPT_BYTES if gpu.memory_bytes <= limit), _KEPT_BYTES_ABOVE)
    return total - kept, f"{basis} minus the most that Linux drivers keep ({kept // _MIB} MiB)"


def _resident_threads(gpu: GpuFacts) -> float | None:
    """The number of threads that can be resident, to within 20%, from the float32 peak."""
    row = _MULTIPROCESSORS.get(gpu.compute_capability or "", ())
    if len(row) <= _LIMITS or gpu.fp32_flops is None:
        return None
    threads, _, _, _, units, clock, *_ = row
    return gpu.fp32_flops / (2 * units * clock * 1e6) * threads
