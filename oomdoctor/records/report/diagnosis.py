"""What `explain` finds in a log, and its diagnosis.

`Incident` and `LogFacts` are what was read. `Diagnosis` is the public answer, and its field names
are the JSON keys. Sizes are integers in bytes, unknown is None.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

from oomdoctor.records.configuration.config import TrainConfig
from oomdoctor.records.job.measurement import CategoryBytes, OomEvent

Resource = Literal["gpu", "host", "shm", "none"]
RESOURCE_WORDS: dict[Resource, str] = {
    "gpu": "out of GPU memory",
    "host": "out of host memory",
    "shm": "out of shared memory (/dev/shm)",
    "none": "out of memory",
}
ReadPhase = Literal[
    "init", "load", "forward", "loss", "backward", "clip", "optimizer", "eval", "generate",
    "sync", "save", "data", "unknown",
]  # fmt: skip
Confidence = Literal["high", "medium", "low"]
CauseName = Literal[
    "capacity", "activations", "logits", "optimizer_states", "gradients", "weights",
    "fragmentation", "other_process", "memory_fraction", "growth", "eval_accumulation",
    "long_batch", "kv_cache", "private_pool", "host_memory", "shared_memory", "duplicate_load",
    "unknown",
]  # fmt: skip
Basis = Literal["measured", "predicted", "arithmetic", "rule"]
Confirmed = Literal["replay", "run", "no"]
SettingValue = str | int | float | bool


@dataclass(frozen=True, slots=True)
class Frame:
    """One frame of a traceback; `code` is the quoted source line, None if it is not shown."""

    file: str
    line: int | None
    function: str
    code: str | None


@dataclass(frozen=True, slots=True)
class ListedProcess:
    """Another process that a message lists as using memory of the device."""

    pid: int
    used_bytes: int


@dataclass(frozen=True, slots=True)
class MemorySample:
    """Memory in use, from one line of the log; `step` is None if unknown.

    `source` is what printed it: "step_line", "nvidia_smi" or "torch".
    """

    step: int | None
    used_bytes: int
    source: str
    line: str


@dataclass(frozen=True, slots=True)
class Incident:
    """One failure found in a log, out of memory or a look-alike.

    `event.dialect` is "not_oom" for a look-alike; then `look_alike` names it (`device_mismatch`,
    `device_assert`, ...) and `resource` is "none". `frames` are outermost first; `where` is the
    innermost line of the user's own code. `lines` quotes the log. `survived` means that the run
    continued, and `recovery` is the line that shows it. `consequence` means that another incident
    of the log caused this one (NCCL aborts of other ranks, a worker that exits after the real
    failure).
    """

    event: OomEvent
    look_alike: str | None = None
    resource: Resource = "none"
    frames: tuple[Frame, ...] = ()
    phase: ReadPhase = "unknown"
    where: Frame | None = None
    lines: tuple[str, ...] = ()
    rank: int | None = None
    line_number: int = 0
    step: int | None = None
    survived: bool = False
    listed_processes: tuple[ListedProcess, ...] = ()
    exception: str | None = None
    recomputing: bool = False
    tensor_shape: tuple[int, ...] = ()
    tensor_dtype: str | None = None
    consequence: bool = False
    repeats: int = 1
    recovery: str | None = None


@dataclass(frozen=True, slots=True)
class LogFacts:
    """Other facts in a log. `settings` use the names of transformers' arguments if they exist.

    `evidence` quotes the lines that a fact was read from, by key (a setting, "model_id",
    "last_step", "traceback", ...). `step_memory` keeps only the first and last samples of a long
    log. `finished` means that a line says that the run ended, and `finished_line` is its number.
    `mentions` quotes a line for each program and each thing around it that the log names.
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
    finished_line: int | None = None
    mentions: Mapping[str, tuple[str, ...]] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Numbers:
    """The numbers in the message, in bytes; None if it does not print them."""

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

    @property
    def used_bytes(self) -> int:
        """What all processes held; 0 if that is unknown."""
        return (self.capacity_bytes or 0) - (self.free_bytes or 0) if self.adds_up else 0

    @property
    def adds_up(self) -> bool:
        """Whether the size of the GPU is known, and what of it was free."""
        if not self.capacity_bytes or self.free_bytes is None:
            return False
        return self.free_bytes + (self.other_processes_bytes or 0) <= self.capacity_bytes


@dataclass(frozen=True, slots=True)
class Tensor:
    """A tensor of the model that has the requested size; `arithmetic` is the product."""

    bytes: int
    shape: tuple[int, ...]
    name: str
    dtype: str | None = None
    likelihood: Confidence = "medium"
    arithmetic: str | None = None


@dataclass(frozen=True, slots=True)
class Cause:
    """One cause, with the quoted lines that are its evidence; `why` is the reason in a sentence.

    `detail` says what exactly, if the text shows it: "attention scores".
    """

    cause: CauseName
    confidence: Confidence
    evidence: tuple[str, ...]
    why: str = ""
    detail: str | None = None


@dataclass(frozen=True, slots=True)
class Remedy:
    """One change, how much memory it frees and how that is known, and what to type per library.

    `lines` has the keys transformers, trl, accelerate, deepspeed, axolotl, pytorch, shell as they
    apply; if a remedy combines several changes (`parts`), each value has a line for each of them.
    With --config, the name of that file comes first, with the lines to change in it.
    `leaves_bytes` is what the training then needs at its peak, if it needs more than the GPU has
    now. `enough` says whether the remedy closes the gap; None if that cannot be computed.
    `changes` are the keys of a recipe that it sets; {} if it sets none, or a value is not known.
    `key` is a stable word for the change; of a set they are joined by `+`. `confirmed` says how
    it was shown that a run that went past the memory of an emulated GPU then fits: by a "replay" of
    its allocations, by a second "run" with the change, or "no".
    """

    change: str
    frees_bytes: int | None
    basis: Basis
    lines: Mapping[str, str]
    arithmetic: str | None = None
    note: str | None = None
    leaves_bytes: int | None = None
    enough: bool | None = None
    parts: tuple[str, ...] = ()
    changes: Mapping[str, SettingValue] = field(default_factory=dict)
    key: str = ""
    confirmed: Confirmed | None = None


@dataclass(frozen=True, slots=True)
class Diagnosis:
    """The answer about one failure of one source.

    If `is_oom` is false, `look_alike` names the error and `short_answer` says what to do. `tensors`
    are all tensors of the requested size, `tensor` the most likely one. `assumed` lists what was
    not in the text, `oddities` what is strange about the numbers, and `needs` the memory that the
    training needs by formula. `needed_bytes` is their total, which leaves out what grows with the
    batch if batch or length is unknown. `short_bytes` is how much has to be freed: by the message,
    or by that total if it exceeds the GPU. `no_way` says so if no change makes the training fit.
    `framework` is the library in the traceback. `survived` means that the run continued; `recovery`
    is the line of the log that shows it. `held` is what was allocated when the request failed, by
    the memory snapshot `held_source`. `model` is its id; `config` is the training as a
    configuration, if batch and length are known; `simulated_bytes` is its peak on the device by
    simulation (`--exact`). `room_bytes` is what the process could have of the GPU: its capacity,
    less what other processes held, and no more than it was allowed. `context_bytes` is what it took
    of that apart from tensors: as the message shows, or what is usual for the GPU.
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
    needed_bytes: int | None = None
    short_bytes: int | None = None
    no_way: str | None = None
    framework: str | None = None
    recovery: str | None = None
    held: CategoryBytes | None = None
    held_source: str | None = None
    model: str | None = None
    config: TrainConfig | None = None
    simulated_bytes: int | None = None
    room_bytes: int | None = None
    context_bytes: int | None = None
