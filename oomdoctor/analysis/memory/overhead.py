"""Device memory that no tensor shows: the CUDA context, and what the driver keeps for itself.

The context holds the stack of every thread that the card can have resident and the kernels that
were loaded, so its size goes with the number of multiprocessors. cuBLAS workspaces are tensors of
the allocator and NCCL's buffers belong to the number of ranks: neither is here. Where facts are
missing, the figures are on the side that predicts "fits" too rarely: a wrong "fits" costs a night.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

if TYPE_CHECKING:
    from oomdoctor.records.machine import GpuFacts

ModuleLoading = Literal["lazy", "eager"]

_MIB = 1 << 20
# Bytes of the context for each resident thread and beside them, by the middle of the 24 runs
# in tests/data/published_context.json (nvidia-smi's bytes of a process less PyTorch's reserved
# bytes, as PyTorch's own out-of-memory messages print them, PyTorch 2.1-2.10). 1 KiB of it is the
# default stack of a CUDA thread (cudaLimitStackSize), the rest are kernels.
_BYTES_A_THREAD = 2304
_BASE_BYTES = 40 * _MIB
# How far single runs are from that: a process that only has a context lies 20 % below; libraries
# that load kernels of their own add up to 70 MiB, on any card. Chosen after seeing the runs; one of
# the 24 (an A100 at 860 MiB) still lies outside.
_LOW, _HIGH = 0.75, 1.2
LIBRARY_BYTES = 64 * _MIB
# All kernels at once instead of those that are used: +362 MiB with PyTorch 1.13 (github
# pytorch/pytorch#86509), "more than 1000 MB" (#107667) with the larger libraries since.
_EAGER_BYTES = (360 * _MIB, 700 * _MIB, 1100 * _MIB)
# Without facts of the card: from the smallest current card to the largest one.
_UNKNOWN_BYTES = (100 * _MIB, 520 * _MIB, 950 * _MIB)

# By compute capability: float32 units and resident threads of a multiprocessor (CUDA programming
# guide, technical specifications by compute capability), and the usual boost clock in Hz, with
# which the float32 peak tells the number of multiprocessors.
_MULTIPROCESSORS = {
    "6.0": (64, 2048, 1.33e9),
    "6.1": (128, 2048, 1.6e9),
    "7.0": (64, 2048, 1.5e9),
    "7.5": (64, 1024, 1.6e9),
    "8.0": (64, 2048, 1.41e9),
    "8.6": (128, 1536, 1.7e9),
    "8.9": (128, 1536, 2.5e9),
    "9.0": (128, 2048, 1.98e9),
    "10.0": (128, 2048, 2.1e9),
    "10.3": (128, 2048, 2.1e9),
    "12.0": (128, 1536, 2.41e9),
}

# What Linux drivers keep of nvidia-smi's total, largest seen by size of the card (facts collected
# from public logs: 220-510 MiB on 8-32 GB, 460-770 on 48-80 GB, 615 on an H200, 720 on a B200).
_KEPT_BYTES = ((32 << 30, 510 * _MIB), (80 << 30, 770 * _MIB))
_KEPT_BYTES_ABOVE = 900 * _MIB
# Cards whose driver reports less than the marketed size: ECC takes a sixteenth of GDDR6 and is on
# by default, and of the newest cards as much is set aside (B300: 268.6 of 288 GiB).
_BELOW_MARKETED = frozenset(
    ("T4", "P40", "A2", "A10", "A10G", "A40", "L4", "L40", "L40S", "B100", "GB200", "GB10")
)


@dataclass(frozen=True, slots=True)
class Range:
    """Bytes: what is likely, and what runs were found between. `source` says on what grounds."""

    low: int
    likely: int
    high: int
    source: str


def context_bytes(gpu: GpuFacts | None, module_loading: ModuleLoading = "lazy") -> Range:
    """Device bytes of a training process beside the allocator's, on one GPU without NCCL.

    `module_loading` is CUDA_MODULE_LOADING: "lazy" is the default since CUDA 11.7.
    """
    found = _context(gpu)
    if module_loading == "lazy":
        return found
    low, likely, high = _EAGER_BYTES
    return Range(
        low=found.low + low,
        likely=found.likely + likely,
        high=found.high + high,
        source=f"{found.source}; all kernels loaded at once (CUDA_MODULE_LOADING=EAGER)",
    )


def device_total_bytes(gpu: GpuFacts) -> tuple[int, str]:
    """The total that `torch.cuda.get_device_properties` reports, and a sentence on its basis."""
    seen = gpu.torch_total_bytes
    # On Windows PyTorch reports the driver's whole total; on Linux the driver keeps some of it.
    if seen is not None and (gpu.total_bytes is None or seen < gpu.total_bytes):
        return seen, "the smallest total that PyTorch was seen to report"
    if gpu.vendor != "NVIDIA":
        return gpu.total_bytes or gpu.memory_bytes, "the marketed size; nothing is known to be kept"
    if gpu.total_bytes is not None:
        total, basis = gpu.total_bytes, "the driver's total"
    elif _BELOW_MARKETED & frozenset(gpu.name.split()):
        total, basis = round(gpu.memory_bytes * 15 / 16), "15/16 of the marketed size"
    else:
        total, basis = gpu.memory_bytes, "the marketed size"
    kept = next((b for limit, b in _KEPT_BYTES if gpu.memory_bytes <= limit), _KEPT_BYTES_ABOVE)
    return total - kept, f"{basis}, less the most that Linux drivers keep ({kept // _MIB} MiB)"


def _context(gpu: GpuFacts | None) -> Range:
    threads = _resident_threads(gpu) if gpu is not None else None
    if threads is None:
        low, likely, high = _UNKNOWN_BYTES
        return Range(low, likely, high, "the card's multiprocessors are not known")
    likely = _BASE_BYTES + round(threads * _BYTES_A_THREAD)
    return Range(
        low=round(likely * _LOW),
        likely=likely,
        high=round(likely * _HIGH) + LIBRARY_BYTES,
        source="2.25 KiB a resident thread, from out-of-memory messages of 14 kinds of cards",
    )


def _resident_threads(gpu: GpuFacts) -> float | None:
    """About as many as the card can hold: within 20 %, by its float32 peak."""
    sizes = _MULTIPROCESSORS.get(gpu.compute_capability or "")
    if sizes is None or gpu.fp32_flops is None:
        return None
    units, threads, clock = sizes
    return gpu.fp32_flops / (2 * units * clock) * threads
