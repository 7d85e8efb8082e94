"""What `explain` reads out of a log, and what it answers.

`Incident` and `LogFacts` are what the reading found; `Diagnosis` is the public answer, whose field
names are the JSON keys. Sizes are integers in bytes, unknown is None.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

from oomdoctor.records.measurement import OomEvent

Resource = Literal["gpu", "host", "shm", "none"]
ReadPhase = Literal[
    "init",
    "load",
    "forward",
    "loss",
    "backward",
    "clip",
    "optimizer",
    "eval",
    "generate",
    "save",
    "data",
    "unknown",
]
Confidence = Literal["high", "medium", "low"]
CauseName = Literal[
    "capacity",
    "activations",
    "logits",
    "optimizer_states",
    "gradients",
    "weights",
    "fragmentation",
    "other_process",
    "memory_fraction",
    "growth",
    "eval_accumulation",
    "long_batch",
    "kv_cache",
    "private_pool",
    "host_memory",
    "shared_memory",
    "duplicate_load",
    "unknown",
]
Basis = Literal["measured", "predicted", "arithmetic", "rule"]
SettingValue = str | int | float | bool


@dataclass(frozen=True, slots=True)
class Frame:
    """One frame of a traceback; `code` is the quoted source line, None where it is not shown."""

    file: str
    line: int | None
    function: str
    code: str | None


@dataclass(frozen=True, slots=True)
class ListedProcess:
    """A process that a message lists as holding memory of the device, not the speaker itself."""

    pid: int
    used_bytes: int


@dataclass(frozen=True, slots=True)
class MemorySample:
    """Memory in use as one line of the log prints it; `step` None where no step is known.

    `source` tells what printed it: "step_line", "nvidia_smi" or "torch".
    """

    step: int | None
    used_bytes: int
    source: str
    line: str


@dataclass(frozen=True, slots=True)
class Incident:
    """One failure found in a log, out of memory or a look-alike.

    `event.dialect` is the contract's, "not_oom" for look-alikes; then `look_alike` names which
    (`device_mismatch`, `device_assert`, ...) and `resource` is "none". `frames` stand outermost
    first; `where` is the innermost line of the user's own code. `lines` quotes the log. `survived`:
    the run went on afterwards. `consequence`: another incident of the same log explains this one
    (NCCL aborts of the other ranks, a worker's exit after the real failure).
    """

    event: OomEvent
    look_alike: str | None
    resource: Resource
    frames: tuple[Frame, ...]
    phase: ReadPhase
    where: Frame | None
    lines: tuple[str, ...]
    rank: int | None
    line_number: int
    step: int | None
    survived: bool
    listed_processes: tuple[ListedProcess, ...] = ()
    exception: str | None = None
    recomputing: bool = False
    tensor_shape: tuple[int, ...] = ()
    tensor_dtype: str | None = None
    consequence: bool = False
    repeats: int = 1


@dataclass(frozen=True, slots=True)
class LogFacts:
    """What else a log tells. `settings` use the names of transformers' arguments where they exist.

    `evidence` quotes, by key (a setting, "model_id", "last_step", "traceback", ...), the lines
    that told it. `step_memory` is bounded: the first and the last of a long log. `finished`: a line
    tells that the run came to its end.
    """

    settings: Mapping[str, SettingValue] = field(default_factory=dict)
    model_id: str | None = None
    step_memory: tuple[MemorySample, ...] = ()
    last_step: int | None = None
    total_steps: int | None = None
    gpu_readings: tuple[MemorySample, ...] = ()
    evidence: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    finished: bool = False
    line_count: int = 0
    gpu_name: str | None = None
    versions: Mapping[str, str] = field(default_factory=dict)
    world_size: int | None = None


@dataclass(frozen=True, slots=True)
class Numbers:
    """The figures of the message, as printed x unit; None where it does not print them."""

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


@dataclass(frozen=True, slots=True)
class Tensor:
    """A tensor of the model whose size is the requested one; `arithmetic` is the product."""

    bytes: int
    shape: tuple[int, ...]
    name: str
    dtype: str | None = None
    likelihood: Confidence = "medium"
    arithmetic: str | None = None


@dataclass(frozen=True, slots=True)
class Cause:
    """One cause with the quoted lines that speak for it; `why` says it in a sentence."""

    cause: CauseName
    confidence: Confidence
    evidence: tuple[str, ...]
    why: str = ""


@dataclass(frozen=True, slots=True)
class Remedy:
    """One change, what it gives back, on what basis, and the line to type for each library.

    `lines` has the keys transformers, trl, accelerate, deepspeed, pytorch, shell as they apply.
    """

    change: str
    frees_bytes: int | None
    basis: Basis
    lines: Mapping[str, str]
    arithmetic: str | None = None
    note: str | None = None


@dataclass(frozen=True, slots=True)
class Diagnosis:
    """The answer about one failure of one source.

    `look_alike` names what it is when `is_oom` is false, with `short_answer`. `tensors` are all
    matches of the requested size, `tensor` the likeliest. `assumed` lists what was not in the
    text, `oddities` what is strange about the figures,
    `needs` the closed form of what the training needs, `framework` the library of the traceback.
    `survived`: the run went on afterwards.
    """

    source: str
    is_oom: bool
    resource: Resource
    dialect: str
    phase: ReadPhase
    rank: int | None
    numbers: Numbers
    where: Frame | None
    tensor: Tensor | None
    causes: tuple[Cause, ...]
    remedies: tuple[Remedy, ...]
    message: str = ""
    verdict: str = ""
    line_number: int | None = None
    step: int | None = None
    survived: bool = False
    look_alike: str | None = None
    short_answer: str | None = None
    tensors: tuple[Tensor, ...] = ()
    assumed: tuple[str, ...] = ()
    oddities: tuple[str, ...] = ()
    evidence: tuple[str, ...] = ()
    listed_processes: tuple[ListedProcess, ...] = ()
    needs: tuple[str, ...] = ()
    framework: str | None = None
