"""How long kernels take that only move bytes: norms, activations, losses, optimizers.

    seconds = bytes x passes / rate + bytes x passes of sums over rows / rate without vector loads

`passes` is how often a kernel moves what its operator reads and writes once: those over rows read
them again, first for sums and then for results. `rate` is the bandwidth that large streams reach.
Kernels without vector loads are slower on cards whose multiprocessors are few for their bandwidth:
each moves some bytes a clock. So are the kernels that sum over rows, for the gradients of a norm's
weights. Constants are in `data/speed.toml`.
"""

from __future__ import annotations

from oomdoctor.package_data import data_of
from oomdoctor.records.job.costs import OpCost
from oomdoctor.records.job.machine import GpuFacts

_KERNELS = data_of("speed.toml")["memory_bound"]
IRREGULAR: dict[str, float] = _KERNELS["irregular"]
PASSES: dict[str, float] = _KERNELS["passes"]
SUMS: dict[str, float] = _KERNELS["sums_over_rows"]
NARROW: dict[str, float] = _KERNELS["narrow"]
UNPACKING: float = _KERNELS["unpacking"]
RELAYING: float = _KERNELS["relaying"]
_CARDS: dict[str, list[float]] = data_of("multiprocessors.toml")
_TWO_BYTES = ("bfloat16", "float16")
# Names of the kernels that torch.compile makes.
COMPILED = "compiled"
SUM_OVER_ROWS = "compiled_sum_over_rows"
_CLOCK = 5  # the place of the usual boost clock, in MHz, in a row of multiprocessors.toml


def moving_seconds(cost: OpCost, gpu: GpuFacts, bandwidth: float) -> float:
    """Seconds in which a kernel moves its bytes, where large streams reach `bandwidth` bytes/s."""
    whole = cost.bytes_moved * PASSES.get(cost.name, 1.0) / _bytes_per_s(cost, gpu, bandwidth)
    sums = cost.bytes_moved * SUMS.get(cost.name, 0.0)
    return whole + (sums / _irregular(gpu, bandwidth, "wider") if sums else 0.0)


def _bytes_per_s(cost: OpCost, gpu: GpuFacts, bandwidth: float) -> float:
    if cost.name in NARROW:
        return _at_most(NARROW[cost.name], gpu, bandwidth)
    if cost.kind == "irregular":
        return _irregular(gpu, bandwidth, "two_bytes" if cost.dtype in _TWO_BYTES else "wider")
    unpacks = cost.kind == "quantised" and cost.name.startswith("dequantize")
    return bandwidth * (UNPACKING if unpacks else 1.0)


def _irregular(gpu: GpuFacts, bandwidth: float, width: str) -> float:
    """Bytes/s of kernels without vector loads; `width` is that of their elements."""
    return _at_most(IRREGULAR[width], gpu, bandwidth)


def _at_most(bytes_a_clock: float, gpu: GpuFacts, bandwidth: float) -> float:
    """Bytes/s of a kernel that moves so many in a clock of each multiprocessor."""
    clocks = clocks_per_s(gpu)
    return bandwidth if clocks is None else min(bandwidth, clocks * bytes_a_clock)


def clocks_per_s(gpu: GpuFacts) -> float | None:
    """Clocks of all multiprocessors together in a second, at the usual boost; None if unknown."""
    clock = _CARDS.get(gpu.compute_capability or "", [])[_CLOCK:]
    if not clock or not gpu.multiprocessors:
        return None
    return gpu.multiprocessors * clock[0] * 1e6
