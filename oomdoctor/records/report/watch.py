"""The live log of a training, and what `watch` sees now: GPUs, and trainings by their live logs.

A live log has one JSON object per line, a header and then memory after each step:

    {"schema": "oomdoctor-memory/1", "pid": 4711, "rank": 0, "gpu_name": "NVIDIA H100", ..}
    {"step": 1, "time_s": 0.52, "device": 0, "allocated_bytes": 17179869184, ..}
    {"event": "warning", "step": 214, "time_s": 81.2, "message": "memory has grown by .."}

Sizes are integers in bytes, unknown is None. Readers skip lines that they do not know.
The field names of a `WatchAnswer` are public JSON keys.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Literal

LIVE_SCHEMA = "oomdoctor-memory/1"
LiveEventKind = Literal["warning", "oom", "skipped", "end"]


@dataclass(frozen=True, slots=True)
class LiveGpu:
    """A GPU of the process; `index` is torch's, so it counts only visible devices."""

    index: int
    gpu_name: str | None
    gpu_uuid: str | None
    total_bytes: int | None


@dataclass(frozen=True, slots=True)
class LiveHeader:
    """The process that trains. `gpu_name`, `gpu_uuid` and `total_bytes` are of its first GPU.

    `started_at` is in UTC, ISO 8601. `command` holds no secrets. `total_steps` is how many
    optimizer steps the training takes, None if it does not say.
    """

    pid: int
    host: str
    rank: int | None
    world: int
    started_at: str
    gpu_name: str | None
    gpu_uuid: str | None
    total_bytes: int | None
    command: tuple[str, ...]
    gpus: tuple[LiveGpu, ...] = ()
    total_steps: int | None = None
    schema: str = LIVE_SCHEMA


@dataclass(frozen=True, slots=True)
class LiveStep:
    """Memory of one device after an optimizer step, `time_s` after the start.

    The peaks are those since the row before. `free_bytes` is what the driver still had; None where
    it was not asked.
    """

    step: int
    time_s: float
    allocated_bytes: int
    reserved_bytes: int
    peak_allocated_bytes: int
    peak_reserved_bytes: int
    free_bytes: int | None = None
    device: int = 0


@dataclass(frozen=True, slots=True)
class StepPeaks:
    """The memory of one optimizer step, by the allocator's trace.

    `allocated_bytes` and `reserved_bytes` are what it left.
    """

    step: int
    peak_allocated_bytes: int
    peak_reserved_bytes: int
    allocated_bytes: int
    reserved_bytes: int

    def repeats(self, before: StepPeaks) -> bool:
        """Whether this step needed what the one before needed, and left what that left."""
        return replace(before, step=self.step) == self


@dataclass(frozen=True, slots=True)
class LiveEvent:
    """Something that happened: a warning, an allocation that failed, a skipped batch, the end."""

    event: LiveEventKind
    step: int
    time_s: float
    message: str


TrendKind = Literal["growth", "steady", "too_short"]


@dataclass(frozen=True, slots=True)
class WatchedProcess:
    """A process on a GPU; `asked` says whether it belongs to the process that was asked about."""

    pid: int
    name: str | None
    used_bytes: int | None
    asked: bool


@dataclass(frozen=True, slots=True)
class MemoryTrend:
    """How a size changes: "too_short" a time to tell, "steady", or a "growth" that goes on.

    `per_step_bytes` and `full_at_step` are None where steps are not known; `full_in_s` is the time
    until memory runs out at this rate.
    """

    kind: TrendKind
    per_step_bytes: int | None = None
    per_s_bytes: int | None = None
    full_at_step: int | None = None
    full_in_s: float | None = None


@dataclass(frozen=True, slots=True)
class WatchedGpu:
    """A GPU as the driver reports it now; `used_bytes` is None if it does not say.

    `trend` is how the memory in use changed while it was watched.
    """

    index: int
    uuid: str
    gpu_name: str
    total_bytes: int
    used_bytes: int | None
    processes: tuple[WatchedProcess, ...]
    trend: MemoryTrend


@dataclass(frozen=True, slots=True)
class LivePoint:
    """The most that was allocated up to a step, since the point before."""

    step: int
    peak_allocated_bytes: int


@dataclass(frozen=True, slots=True)
class LiveMessage:
    """An event of a job: a warning, an allocation that failed, a skipped batch, its end."""

    event: LiveEventKind
    step: int
    message: str


@dataclass(frozen=True, slots=True)
class WatchedTraining:
    """One GPU of a job that writes a live log, `log`.

    `step` is the last one, `step_s` the time that a step takes lately. Memory is what the last step
    left, and the peaks of the whole training. `capacity_bytes` is what the process can have.
    `silent_s` is how long ago the log was written.
    """

    log: str
    pid: int
    rank: int | None
    world: int
    command: tuple[str, ...]
    started_at: str
    ended: bool
    silent_s: float
    device: int
    gpu_name: str | None
    gpu_uuid: str | None
    total_bytes: int | None
    step: int | None
    total_steps: int | None
    step_s: float | None
    allocated_bytes: int | None
    reserved_bytes: int | None
    peak_allocated_bytes: int | None
    peak_reserved_bytes: int | None
    capacity_bytes: int | None
    trend: MemoryTrend
    memory: tuple[LivePoint, ...]
    events: tuple[LiveMessage, ...]


@dataclass(frozen=True, slots=True)
class WatchAnswer:
    """What was asked about, and what there is: GPUs by the driver, jobs by their logs."""

    asked: str
    gpus: tuple[WatchedGpu, ...]
    trainings: tuple[WatchedTraining, ...]
