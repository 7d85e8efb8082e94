"""What `run` reports of a watched command: its device, and the memory of each rank.

The field names are the JSON keys. Sizes are integers in bytes, unknown is None.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from oomdoctor.records.job.costs import CalibratedBy
from oomdoctor.records.job.result import Evidence
from oomdoctor.records.job.step_time import StepTime
from oomdoctor.records.report.diagnosis import ReadPhase
from oomdoctor.records.report.watch import StepPeaks

DeviceKind = Literal["real", "emulated"]
RankOutcome = Literal["fits", "oom", "failed"]
Stopped = Literal["steady", "steps", "past"]
StepUnit = Literal["step", "pass"]


@dataclass(frozen=True, slots=True)
class RunDevice:
    """The GPUs that the command saw: `gpus` of them, each with `total_bytes` as torch reports it.

    `gpu_name` is None for a bare size. `usable_bytes` is what is left for tensors besides the CUDA
    context, which takes `context_bytes`; of a real GPU also besides other processes, where the
    context is not known by itself.
    """

    kind: DeviceKind
    gpu_name: str | None
    gpus: int
    total_bytes: int
    compute_capability: str | None
    context_bytes: int | None
    usable_bytes: int | None


@dataclass(frozen=True, slots=True)
class Place:
    """A line of code."""

    file: str
    line: int
    function: str

    @property
    def is_python(self) -> bool:
        """Whether it is a line of Python."""
        return self.file.endswith(".py") or self.file.startswith("<")

    @property
    def module(self) -> str | None:
        """The module and the operator, where a snapshot of oomdoctor names these; else None."""
        if self.line or not self.file.startswith("<"):
            return None
        return f"{self.file.strip('<>')}: {self.function.removeprefix('aten::')}"


@dataclass(frozen=True, slots=True)
class UnknownBranch:
    """A line of the script that read a value which no kernel had computed, and how often."""

    file: str
    line: int
    count: int


@dataclass(frozen=True, slots=True)
class UnknownSize:
    """A line whose memory depends on values that no kernel computed, and how often it ran.

    `file` is empty in the thread of the backward pass, which runs no line. `operator` read them.
    `allocates` says that it allocates by them, as nonzero does; else it gave the command an
    integer, such as the sum of a mask. `bounded` says whether the shapes limit it, where that was
    tried. Where the values decide a branch, `operator` is if, or while for one that ends a loop.
    """

    file: str
    line: int
    operator: str
    allocates: bool
    count: int
    bounded: bool | None

    @property
    def is_branch(self) -> bool:
        """Whether the command branches by them."""
        return self.operator in ("if", "while")


@dataclass(frozen=True, slots=True)
class UnknownSizes:
    """Memory that depends on values which no kernel computed, such as x[score > 0.5].

    The report is about the run that took them for `assumed`: 0, a number, half or max (all that the
    shapes allow). `lower_bytes` and `upper_bytes` are the reserved peaks of the fullest GPU with 0
    and with max, null if only one was tried. `failed` says why the run with max gave no answer.
    `untried` says why branches have no answer that only showed in a further run: then the upper end
    may be higher.
    """

    assumed: str
    sizes: tuple[UnknownSize, ...]
    lower_bytes: int | None = None
    upper_bytes: int | None = None
    failed: str | None = None
    untried: str | None = None

    @property
    def is_share(self) -> bool:
        """Whether the user asked for a share, instead of both ends."""
        return self.assumed not in ("0", "max")

    @property
    def is_sure(self) -> bool:
        """Whether the upper end is known, or a share was asked for."""
        if self.is_share:
            return True
        bounded = all(size.bounded is not False for size in self.sizes)
        return self.upper_bytes is not None and bounded and self.untried is None


@dataclass(frozen=True, slots=True)
class MaxPeak:
    """What `--max-peak` allows, and the peak on the device of the fullest GPU."""

    limit_bytes: int
    peak_bytes: int

    @property
    def above_bytes(self) -> int:
        """By how much the peak is above the limit."""
        return max(0, self.peak_bytes - self.limit_bytes)


@dataclass(frozen=True, slots=True)
class MemoryPoint:
    """Memory at one moment. `step` counts finished optimizer steps.

    `at_s` is the time since the first allocation; with an emulated GPU it says only the order.
    """

    at_s: float
    step: int
    allocated_bytes: int
    reserved_bytes: int


@dataclass(frozen=True, slots=True)
class RankOom:
    """A request that the allocator could not meet.

    `least_bytes` is what the process needed then: what it had allocated, and the request. `caught`
    says whether the script went on. `snapshot` is the file with what torch knew then, in the case.
    With `went_past`, an emulated GPU granted the request and all that followed; then the peaks of
    the rank are beyond the card, and `snapshot` is of the step with the highest peak.
    """

    requested_bytes: int
    free_bytes: int
    total_bytes: int
    least_bytes: int
    phase: ReadPhase
    module: str | None
    where: Place | None
    step: int
    caught: bool
    snapshot: str | None = None
    went_past: bool = False


@dataclass(frozen=True, slots=True)
class RankMemory:
    """One GPU of one process of the command.

    `rank` is the rank in torch.distributed or the launcher, else the order of the processes.
    `device` is the index of the GPU as the process sees it. `peak_device_bytes` is what nvidia-smi
    would show for the process: the reserved peak and the CUDA context. `where` is the innermost
    line of the user's own code at the peak, and `library_where` the line of the library below it.
    `headroom_bytes` is how much more the process could have reserved. `stopped` says why the
    training was stopped, if it was. `unit` is "pass" if no optimizer took steps, so that they are
    backward passes. `not_reached` are calls in the user's code that evaluate, generate or save and
    that would have come after the stop. `steps_memory` leaves out steps in the middle of a long
    run, and `memory` keeps the highest point of each stretch. `short_bytes` is what the GPU lacked
    for the peak of a run that went on past its memory.
    """

    rank: int
    pid: int
    device: int
    outcome: RankOutcome
    evidence: Evidence
    peak_allocated_bytes: int
    peak_reserved_bytes: int
    peak_device_bytes: int | None
    peak_phase: ReadPhase
    peak_module: str | None
    peak_step: int | None
    where: Place | None
    library_where: Place | None
    headroom_bytes: int | None
    retries: int
    steps: int
    stopped: Stopped | None
    oom: RankOom | None
    unknown_branches: tuple[UnknownBranch, ...]
    steps_memory: tuple[StepPeaks, ...]
    memory: tuple[MemoryPoint, ...]
    unit: StepUnit = "step"
    not_reached: tuple[Place, ...] = ()
    short_bytes: int | None = None

    @property
    def went_past(self) -> bool:
        """Whether the run went on past the memory of an emulated GPU."""
        return self.oom is not None and self.oom.went_past

    @property
    def repeats(self) -> bool:
        """Whether the last two steps needed the same memory and left the same."""
        last = self.steps_memory[-2:]
        return len(last) == 2 and last[1].repeats(last[0])


@dataclass(frozen=True, slots=True)
class HostMemory:
    """The memory of the host while the command ran, in addition to its GPUs.

    `least_available_bytes` is the lowest of one sample per second. `kernel_kills` is how many
    processes the kernel ended meanwhile because memory was short: in the control group of the
    command, or, where that is unknown, on the machine. `shm_least_free_bytes` is of /dev/shm.
    """

    total_bytes: int
    least_available_bytes: int | None
    kernel_kills: int
    shm_total_bytes: int | None
    shm_least_free_bytes: int | None


@dataclass(frozen=True, slots=True)
class LargerBatch:
    """The micro-batch size of a run that fitted, and the largest that should fit too.

    All that was reserved beyond what a step leaves is assumed to grow with the micro-batch: by
    `bytes_per_row` for each row. So it is a cautious estimate.
    """

    micro_batch_size: int
    should_fit: int
    bytes_per_row: int


@dataclass(frozen=True, slots=True)
class SmallestGpu:
    """The smallest card on which the command would have fitted, and its total as torch has it.

    `sized_by_card` are engines that hold a share of the card, such as vLLM: on this card they would
    hold another size than was counted.
    """

    name: str
    total_bytes: int
    sized_by_card: tuple[str, ...] = ()


def fullest(ranks: Sequence[RankMemory]) -> RankMemory | None:
    """The rank that ran out of memory, else the one that reserved most."""
    return max(
        ranks, key=lambda rank: (rank.outcome == "oom", rank.peak_reserved_bytes), default=None
    )


@dataclass(frozen=True, slots=True)
class LaunchedProduct:
    """Matrix products of one shape, m x k by k x n, and how many a step launches."""

    batch: int
    m: int
    n: int
    k: int
    dtype: str
    count: int


@dataclass(frozen=True, slots=True)
class UnknownKernel:
    """A kernel that counts for no time, because only its name, grid and block are known.

    The grid and the block are empty for a library's function and for the replay of a CUDA graph.
    """

    name: str
    grid: tuple[int, ...]
    block: tuple[int, ...]
    count: int


@dataclass(frozen=True, slots=True)
class FasterStep:
    """A change of a script, and how long its step would then take at best."""

    change: str
    seconds: float


@dataclass(frozen=True, slots=True)
class LaunchedStep:
    """The last whole step of a rank on the emulated card: what it launched, and how long it takes.

    Kernels whose time is not known are left out of the time.
    """

    rank: int
    """The first rank of the command."""
    number: int | None
    """Which step it was. None without an optimizer step: then all launches count."""
    launches: Mapping[str, int]
    """How many of each kind: kernel, product, copy, fill, collective, graph, and library for other
    functions of CUDA's libraries."""
    products: tuple[LaunchedProduct, ...]
    """The most frequent first."""
    unknown_kernels: tuple[UnknownKernel, ...]
    """The most frequent first."""
    time: StepTime | None
    """The estimated time, by what it is spent on."""
    uncertainty: float | None
    """The share of the time of a micro-step by which it may be off either way."""
    reason: str | None
    """Why there is no time."""
    faster: tuple[FasterStep, ...] = ()
    """What would make it faster, the fastest first."""
    trace: str | None = None
    """The file of --trace."""
    calibrated_by: CalibratedBy | None = None
    """The probe whose measured times correct the estimate."""
