"""The live log of a training: one JSON object per line, a header and then memory after each step.

    {"schema": "oomdoctor-memory/1", "pid": 4711, "rank": 0, "gpu_name": "NVIDIA H100", ..}
    {"step": 1, "time_s": 0.52, "device": 0, "allocated_bytes": 17179869184, ..}
    {"event": "warning", "step": 214, "time_s": 81.2, "message": "memory grows by .."}

Sizes are integers in bytes, unknown is None. Readers skip lines that they do not know.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

LIVE_SCHEMA = "oomdoctor-memory/1"
LiveEventKind = Literal["warning", "oom", "skipped", "end"]


@dataclass(frozen=True, slots=True)
class LiveGpu:
    """A GPU of the process; `index` is that of torch, so it counts visible devices only."""

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
class LiveEvent:
    """Something that happened: a warning, an allocation that failed, a skipped batch, the end."""

    event: LiveEventKind
    step: int
    time_s: float
    message: str
