"""What a worker measured or a simulation predicted, and what an out-of-memory message says.

Also how memory rises and falls while a rung loads and trains, and what it is held for.

Sizes are integers in bytes, times floats in seconds, unknown is None.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Literal, get_args

from oomdoctor.records.facts.categories import BREAKDOWN, OTHER, TABLE
from oomdoctor.records.job.step_time import StepBound


@dataclass(frozen=True, slots=True)
class CurvePhase:
    """A phase of the load or of a step ("first", "steady"), which begins with this moment."""

    step: str
    phase: str
    moment: int


@dataclass(frozen=True, slots=True)
class MemoryCurve:
    """Allocated bytes over a load and the steps after it, or over one step, at some moments.

    Of the `events` (allocations and releases, in order) each moment is the highest of a stretch:
    `event` has its number. Moments on a line between others are left out, so from one to the next
    memory went straight, within 0.5% of the peak. `allocated_bytes` are what the allocator had
    given out. `by_category` says for what, without categories that are never there; what it leaves
    is rounding, and memory that no tensor shows. `peak` is the moment of the peak, which is exact.
    """

    events: int
    event: tuple[int, ...]
    allocated_bytes: tuple[int, ...]
    by_category: Mapping[str, tuple[int, ...]]
    phases: tuple[CurvePhase, ...]
    peak: int

    def rest_bytes(self, moment: int) -> int:
        """What is allocated beyond the categories."""
        return self.allocated_bytes[moment] - sum(
            sizes[moment] for sizes in self.by_category.values()
        )


PhaseName = Literal[
    "init", "load", "forward", "backward", "optimizer", "eval", "generate", "sync", "done"
]


@dataclass(frozen=True, slots=True)
class PhaseMemory:
    """Peaks within one phase, the highest of all memory steps. Reserved is None on the CPU."""

    peak_allocated_bytes: int
    peak_reserved_bytes: int | None = None


@dataclass(frozen=True, slots=True)
class Breakdown:
    """What was alive at the peak; adds up to the peak of allocated bytes."""

    weights_bytes: int
    gradients_bytes: int
    optimizer_bytes: int
    activations_bytes: int
    logits_bytes: int
    other_bytes: int

    def sizes(self) -> dict[str, int]:
        """The bytes by category, in the order of tables."""
        return {name: getattr(self, f"{name}_bytes") for name in BREAKDOWN}


@dataclass(frozen=True, slots=True)
class Load:
    """Who used the device while steps were timed; None if unknown.

    The worker may use `cpus` CPU cores, and its libraries use `threads` of them at a time.
    `own_cpus` and `foreign_cpus` are the cores that the worker and all other processes kept busy
    on average. `foreign_gpu` is the share of the time in which other processes used the GPU.
    """

    cpus: int
    threads: int
    own_cpus: float
    foreign_cpus: float | None
    foreign_gpu: float | None = None


@dataclass(frozen=True, slots=True)
class Timing:
    """Times of the timed steps, after warm-up; medians with a relative spread.

    A spread is half the distance between the quartiles (below eight samples half the range),
    divided by the median; None for fewer than two samples. `stopped_by` says why timing ended.
    `load` is what else ran then. `limited_by` says what an estimated micro-step waits for,
    `bound` what takes most of its time, and `bound_s` how many seconds that takes.
    """

    micro_step_s: float
    micro_step_spread: float | None
    optimizer_step_s: float
    optimizer_step_spread: float | None
    first_untraced_step_s: float
    warmup_steps: int
    timed_steps: int
    stopped_by: Literal["spread", "step_limit", "time_limit", "estimated"]
    load: Load | None = None
    limited_by: Literal["host", "device"] | None = None
    bound: StepBound | None = None
    bound_s: float | None = None


@dataclass(frozen=True, slots=True)
class RankPeak:
    """The peaks of one rank of a job on several GPUs. Reserved is None on the CPU."""

    rank: int
    peak_allocated_bytes: int
    peak_reserved_bytes: int | None


@dataclass(frozen=True, slots=True)
class Moment:
    """What a card holds at one moment of a GRPO job, computed except for the training step.

    `name` is "step", "generate" (completions are generated), or "sync" (vLLM gets new weights).
    Of `device_bytes`, the training process has allocated `allocated_bytes` and the engine next to
    it has `engine_bytes`; the rest is the context, libraries, and what the allocator keeps.
    """

    name: Literal["step", "generate", "sync"]
    device_bytes: int
    allocated_bytes: int
    engine_bytes: int


def deciding_peak(device: int | None, reserved: int | None, allocated: int | None) -> int | None:
    """The peak that is compared with the budget: the most complete one that is known.

    Device memory on a GPU, else what the allocator reserved; tensor bytes on the CPU.
    """
    return next((peak for peak in (device, reserved, allocated) if peak is not None), None)


@dataclass(frozen=True, slots=True)
class Measurement:
    """What one worker measured at one micro-batch size.

    `peak_device_bytes` is all device memory that the process used, context and libraries included
    (None on the CPU); `overhead_bytes` is the part outside the caching allocator.
    `peak_rss_bytes` is the host memory of the process. `phases` has the keys load, forward,
    backward, optimizer and, if requested, eval. `first_step` and `steady` hold the same peaks for
    the step that creates the optimizer states and for later steps. On several GPUs, it is from the
    rank that needs the most; `ranks` has the ranks that ran, and `host_peak_bytes` is the host
    memory of all ranks of a node. `curve` is how memory got to that peak. `resting` is what a
    simulated step leaves, once the cache is emptied. `moments` are the moments of a GRPO job; if
    one of them needs more than the step, it sets the peaks.
    """

    peak_allocated_bytes: int
    peak_reserved_bytes: int | None
    peak_device_bytes: int | None
    overhead_bytes: int | None
    peak_rss_bytes: int | None
    peak_phase: PhaseName
    phases: Mapping[str, PhaseMemory]
    first_step: Mapping[str, PhaseMemory]
    steady: Mapping[str, PhaseMemory]
    breakdown: Breakdown | None
    allocation_retries: int | None
    managed_bytes: int
    timing: Timing | None
    attention_kernel: str | None
    trainable_parameters: int
    parameters: int
    losses: tuple[float, ...]
    skipped_optimizer_steps: int
    notes: tuple[str, ...]
    versions: Mapping[str, str | None]
    memory_stats: Mapping[str, int] = field(default_factory=dict)
    ranks: tuple[RankPeak, ...] = ()
    host_peak_bytes: int | None = None
    curve: MemoryCurve | None = None
    resting: PhaseMemory | None = None
    moments: tuple[Moment, ...] = ()

    def deciding_peak_bytes(self) -> int:
        """The peak that is compared with the budget; see `deciding_peak`."""
        of_allocator = (self.peak_reserved_bytes, self.peak_allocated_bytes)
        peak = deciding_peak(self.peak_device_bytes, *of_allocator)
        assert peak is not None  # what was allocated is always known
        return peak

    def least_bytes(self) -> int:
        """What it needs if the allocator holds nothing beyond the tensors."""
        return self.peak_allocated_bytes + (self.overhead_bytes or 0)


@dataclass(frozen=True, slots=True)
class OomEvent:
    """The numbers of one out-of-memory message, in bytes (the printed figure times its unit)."""

    message: str
    dialect: str
    phase: str
    requested_bytes: int | None = None
    capacity_bytes: int | None = None
    free_bytes: int | None = None
    process_bytes: int | None = None
    allocated_bytes: int | None = None
    reserved_bytes: int | None = None
    reserved_unallocated_bytes: int | None = None
    private_pools_bytes: int | None = None
    allowed_bytes: int | None = None
    other_processes_bytes: int | None = None


BlockCategory = Literal[
    "weights", "gradients", "optimizer", "activations", "logits", "temporary", "other"
]

CATEGORY_WORDS: Mapping[BlockCategory, str] = MappingProxyType(
    {name: TABLE[name].words for name in get_args(BlockCategory)} | {OTHER: "not known"}
)
"""Each category as people read it; a snapshot cannot say what other blocks are."""


@dataclass(frozen=True, slots=True)
class CategoryBytes:
    """Allocated bytes by what they are for; they add up to what was allocated."""

    weights_bytes: int
    gradients_bytes: int
    optimizer_bytes: int
    activations_bytes: int
    logits_bytes: int
    temporary_bytes: int
    other_bytes: int

    def of(self, category: BlockCategory) -> int:
        """The bytes of one category."""
        size: int = getattr(self, f"{category}_bytes")
        return size
