"""What `snapshot` reports of each device of a memory snapshot.

The field names are the JSON keys. Sizes are integers in bytes, unknown is None.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from oomdoctor.records.job.measurement import BlockCategory, CategoryBytes
from oomdoctor.records.report.diagnosis import Confidence, ReadPhase
from oomdoctor.records.report.run import Place


@dataclass(frozen=True, slots=True)
class HeldBlocks:
    """The blocks of one category that one line of code made: total bytes and count.

    `where` is None if no line of the user's is in the stacks; `library_where` is the innermost line
    of Python.
    """

    bytes: int
    count: int
    category: BlockCategory
    confidence: Confidence
    where: Place | None
    library_where: Place | None


@dataclass(frozen=True, slots=True)
class SnapshotPeak:
    """The moment at which most was allocated: after the event `event`, in optimizer step `step`.

    `event` is negative for the time before the first one. `blocks` are the largest,
    `other_blocks_bytes` the rest.
    """

    event: int
    at_us: int | None
    step: int | None
    phase: ReadPhase
    where: Place | None
    categories: CategoryBytes
    blocks: tuple[HeldBlocks, ...]
    other_blocks_bytes: int


@dataclass(frozen=True, slots=True)
class SnapshotDifference:
    """How much more a device holds at the end of a snapshot than at the end of an earlier one.

    Negative where it holds less. `blocks` are the lines with the largest changes.
    """

    index: int
    allocated_bytes: int
    reserved_bytes: int
    categories: CategoryBytes
    blocks: tuple[HeldBlocks, ...]
    other_blocks_bytes: int


@dataclass(frozen=True, slots=True)
class SnapshotFragmentation:
    """Memory that was reserved but not allocated, at the end of the snapshot.

    `held_open_bytes` of it are in segments that a block keeps from being given back.
    `with_expandable_segments_bytes` is the peak of reserved memory if the same trace runs with
    expandable segments, by replay; None where the replay does not agree with the trace.
    """

    free_in_segments_bytes: int
    largest_free_bytes: int
    held_open_bytes: int
    with_expandable_segments_bytes: int | None


@dataclass(frozen=True, slots=True)
class SnapshotRetries:
    """Requests that failed at first, so that torch gave cached memory back and asked again.

    `elapsed_s` is from the first give-back to the second request, so that waiting for the device
    before it is not in it. None if the events have no times.
    """

    count: int
    released_bytes: int
    elapsed_s: float | None


@dataclass(frozen=True, slots=True)
class ReplayedRun:
    """How a trace ends in a replay with something changed.

    `needed_bytes` is the reserved peak without a limit. If that is too much, it may still fit by
    `retries`, at which torch empties its cache. `short_bytes` is how much was missing for the
    first request that failed, None if all of it `fits`.
    """

    fits: bool
    needed_bytes: int
    peak_reserved_bytes: int
    retries: int
    short_bytes: int | None


@dataclass(frozen=True, slots=True)
class SnapshotFit:
    """Whether a trace would have fitted a GPU, by replay.

    `capacity_bytes` is what torch can reserve there. A trace that ended with a failed request is
    replayed up to that request. None for what was not replayed: expandable segments were on
    already, or it is not known which blocks shrink with the micro-batch (at most
    `half_confidence`). `note` says why there is no answer at all.
    """

    gpu: str
    capacity_bytes: int
    as_it_was: ReplayedRun | None = None
    with_expandable_segments: ReplayedRun | None = None
    with_half_micro_batch: ReplayedRun | None = None
    half_confidence: Confidence | None = None
    note: str | None = None


ChangeKind = Literal["free", "growth", "line", "setting", "micro_batch", "gpu"]


@dataclass(frozen=True, slots=True)
class SnapshotChange:
    """A change with which the failed request would have passed, as a replay confirmed.

    `bytes` are those that it frees or adds. `setting` is for PYTORCH_CUDA_ALLOC_CONF, `gpu` a card,
    and `category` and `where` say which blocks would have to be gone.
    """

    kind: ChangeKind
    bytes: int | None
    confidence: Confidence = "high"
    setting: str | None = None
    gpu: str | None = None
    category: BlockCategory | None = None
    where: Place | None = None


@dataclass(frozen=True, slots=True)
class SnapshotOom:
    """The last request that failed: `free_bytes` is what the driver still had then.

    `held` is what was allocated at that moment. With each of `changes`, the request would have
    passed; `changes_note` says why none or only some were tried.
    """

    requested_bytes: int
    free_bytes: int
    allocated_bytes: int
    reserved_bytes: int
    phase: ReadPhase
    where: Place | None
    held: SnapshotPeak
    changes: tuple[SnapshotChange, ...] = ()
    changes_note: str | None = None


GrowthUnit = Literal["step", "pass", "failure"]
GrowthKind = Literal[
    "graph", "outputs", "activations", "optimizer", "evaluation", "kv_cache", "tensors",
    "exception", "fragmentation", "unknown",
]  # fmt: skip


@dataclass(frozen=True, slots=True)
class SnapshotGrowth:
    """Memory that a program left behind again and again, and the line that made it.

    `bytes_per_step` is the mean over the `steps` units of the trace in which it grew, which are
    optimizer steps, passes of a loop without steps, or failed requests (`unit`); unit `since_step`
    was the first. `total_bytes` is what the trace ends with. `kind` is what it looks like, by
    `confidence`; of "fragmentation", the bytes are reserved and not allocated. `where` made most of
    it. A snapshot does not say what keeps a block: `called_from` are the user's lines outside the
    model that are around all that stays, the innermost first. `lines` are those that made it, the
    largest first. `full_at_step` is when the GPU is full if it goes on, None if its size is not
    known.
    """

    bytes_per_step: int
    steps: int
    where: Place | None
    kind: GrowthKind = "unknown"
    confidence: Confidence = "low"
    unit: GrowthUnit = "step"
    since_step: int = 1
    total_bytes: int = 0
    called_from: tuple[Place, ...] = ()
    lines: tuple[HeldBlocks, ...] = ()
    full_at_step: int | None = None


@dataclass(frozen=True, slots=True)
class SnapshotDevice:
    """One device. `allocated_bytes` and `reserved_bytes` are at the end of the trace.

    `truncated` says that memory was in use before the first event, so that the history does not
    tell where it came from. `has_stacks` says whether events name lines of Python. Without events
    there is no peak. `growth` is the fastest growth, `more_growth` has others. `fits` has
    the GPUs that were asked for.
    """

    index: int
    allocated_bytes: int
    reserved_bytes: int
    peak_allocated_bytes: int | None
    peak_reserved_bytes: int | None
    events: int
    truncated: bool
    has_stacks: bool
    steps: int
    peak: SnapshotPeak | None
    at_end: SnapshotPeak
    fragmentation: SnapshotFragmentation
    retries: int
    oom: SnapshotOom | None
    growth: SnapshotGrowth | None
    more_growth: tuple[SnapshotGrowth, ...] = ()
    fits: tuple[SnapshotFit, ...] = ()
    retry_cost: SnapshotRetries | None = None
