"""How long kernels take that only move bytes: norms, activations, losses, optimizers.

    seconds = bytes x passes / rate

`passes` is how often a kernel moves what its operator reads and writes once: those over rows read
them again, first for sums and then for results. `rate` is the bandwidth that large streams reach.
Kernels without vector loads are slower on cards whose multiprocessors are few for their bandwidth:
each moves some bytes a clock. Constants are in `data/speed.toml`.
"""

from __future__ import annotations

from oomdoctor.package_data import data_of
from oomdoctor.records.job.costs import OpCost
from oomdoctor.records.job.machine import GpuFacts

_KERNELS = data_of("speed.toml")["memory_bound"]
IRREGULAR: dict[str, float] = _KERNELS["irregular"]
PASSES: dict[str, float] = _KERNELS["passes"]
UNPACKING: float = _KERNELS["unpacking"]
_CARDS: dict[str, list[float]] = data_of("multiprocessors.toml")
_TWO_BYTES = ("bfloat16", "float16")
_CLOCK = 5  # the place of the usual boost clock, in MHz, in a row of multiprocessors.toml


def passes_of(cost: OpCost) -> float:
    """How often the kernel of an operator moves its bytes."""
    return PASSES.get(cost.name, 1.0)


def bytes_per_s(cost: OpCost, gpu: GpuFacts, bandwidth: float) -> float:
    """The rate at which a kernel moves bytes, where large streams reach `bandwidth`."""
    if cost.kind == "irregular":
        clock = _CARDS.get(gpu.compute_capability or "", [])[_CLOCK:]
        if not clock or not gpu.multiprocessors:
            return bandwidth
        each = IRREGULAR["two_bytes" if cost.dtype in _TWO_BYTES else "wider"]
        return min(bandwidth, gpu.multiprocessors * clock[0] * 1e6 * each)
    unpacks = cost.kind == "quantised" and cost.name.startswith("dequantize")
    return bandwidth * (UNPACKING if unpacks else 1.0)
