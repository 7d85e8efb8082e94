"""How long hosts take to launch kernels: the usual host of a card, compiled models, CUDA graphs.

The host issues operators ahead of the device, so it costs time only if it is slower. Hosts of one
kind of card differ by more than twice; `probe --calibrate` measures one. Constants are in
`data/speed.toml`.
"""

from __future__ import annotations

from dataclasses import dataclass

from oomdoctor.analysis.speed.convolutions import convolution_calls
from oomdoctor.package_data import data_of
from oomdoctor.records.job.costs import OpCost
from oomdoctor.records.job.machine import GpuFacts

_KERNELS = data_of("speed.toml")["kernels"]


@dataclass(frozen=True, slots=True)
class Host:
    """Seconds of the host for each kernel, and for each sequence of them that is called as one.

    `kernel_s` is None for kernels in eager mode, for which the hosts of different cards differ.
    With activation checkpointing, hooks see every tensor that is kept. The host launches a `share`
    of the kernels, and CUDA graphs the others.
    """

    kernel_s: float | None = None
    call_s: float = 0.0
    share: float = 1.0
    checkpoints: bool = False

    @property
    def is_eager(self) -> bool:
        """Whether it launches every kernel of eager mode itself."""
        return self.kernel_s is None and self.share == 1.0

    def seconds(self, operators: float, gpu: GpuFacts) -> float:
        """What it needs to launch so many operators on a card."""
        each = self.kernel_s
        if each is None:
            each = eager_s(gpu, checkpoints=self.checkpoints)
        return operators * self.share * each + self.call_s


def eager_s(gpu: GpuFacts, *, checkpoints: bool = False) -> float:
    """Seconds of the usual host of a card for one operator in eager mode."""
    by_capability: dict[str, float] = _KERNELS["host_s"]
    slowest = by_capability["other"]  # measured with checkpointing
    usual = by_capability.get(gpu.compute_capability or "", slowest)
    return min(slowest, usual * _KERNELS["checkpointing"]) if checkpoints else usual


EAGER = Host()
# Forward and backward are separate graphs.
COMPILED = Host(_KERNELS["compiled_s"], 2 * _KERNELS["graph_s"])


def as_operators(cost: OpCost) -> float:
    """How many operators take the host as long as this one: a convolution calls cuDNN."""
    if cost.kind != "conv":
        return 1.0
    return float(convolution_calls(cost) * _KERNELS["convolution"])
