"""What `plan` is asked to search for, and its answers.

`--gpus A..B --min`: the fewest GPUs on which each configuration fits. `--solve`: the largest value
of one setting that still fits.

Sizes are integers in bytes, unknown is None. Field names are public JSON keys.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, get_args

from oomdoctor.records.job.result import Evidence


@dataclass(frozen=True, slots=True)
class GpuRange:
    """From how many to how many GPUs to look at."""

    low: int
    high: int


@dataclass(frozen=True, slots=True)
class GpuTry:
    """A number of GPUs that was tried for a configuration.

    `peak_device_bytes` is the peak of one GPU, and `missed_by_bytes` what it is short of; both are
    None if they are not known. With `by_formula` only a lower bound was computed.
    """

    gpus: int
    fits: bool
    peak_device_bytes: int | None
    missed_by_bytes: int | None
    by_formula: bool = False


@dataclass(frozen=True, slots=True)
class FewestLine:
    """The answer for a configuration on a card.

    `gpus` is the fewest GPUs on which the configuration fits, None if it fits on none of the range
    or could not be run. `peak_device_bytes` is the peak of one GPU there, at `micro_batch_size`.
    `effective_batch_size` is rounded up to a multiple of the GPUs. With `fewer` GPUs, the next
    number down, a GPU is short by `fewer_missed_by_bytes`. `reason` says why there is no answer.
    `rung` is the configuration at `gpus`, as `--rung` reads it.
    """

    card: str
    key: str
    label: str
    gpus: int | None
    effective_batch_size: int | None
    micro_batch_size: int | None
    peak_device_bytes: int | None
    host_peak_bytes: int | None
    fewer: int | None
    fewer_missed_by_bytes: int | None
    evidence: Evidence | None
    reason: str | None
    rung: str | None
    tries: tuple[GpuTry, ...] = ()


@dataclass(frozen=True, slots=True)
class FewestAnswer:
    """The fewest GPUs from `low` to `high`: one line for each card and configuration."""

    low: int
    high: int
    lines: tuple[FewestLine, ...]


SolvedKey = Literal[
    "sequence_length", "micro_batch_size", "lora_rank",
    "completion_length", "num_generations", "vllm_gpu_memory_utilization",
]  # fmt: skip
OF_GRPO: tuple[SolvedKey, ...] = get_args(SolvedKey)[3:]


@dataclass(frozen=True, slots=True)
class SolveLine:
    """The answer for a configuration on a card; both `largest` and `next_value` were simulated.

    `largest` is the largest value that surely fits, None if none does or if nothing was predicted.
    At `next_value`, the next one up, the configuration needs `next_peak_device_bytes` and is short
    by `next_missed_by_bytes`, or with `next_borderline` closer to the limit than the prediction
    error. If nothing fits, `next_value` is the smallest value. `limited_by` says why the search
    ended without a value that does not fit. `reason` says why there is no answer.
    `micro_batch_size`, `sequence_length` and `effective_batch_size` are those at `largest`. `rung`
    is the configuration at `largest`, as `--rung` reads it. Of `vllm_gpu_memory_utilization` the
    values are hundredths.
    """

    card: str
    key: str
    label: str
    micro_batch_size: int | None
    sequence_length: int | None
    effective_batch_size: int | None
    largest: int | None
    peak_device_bytes: int | None
    next_value: int | None
    next_peak_device_bytes: int | None
    next_missed_by_bytes: int | None
    limited_by: str | None
    reason: str | None
    rung: str | None
    next_borderline: bool = False


@dataclass(frozen=True, slots=True)
class SolveAnswer:
    """The largest values of `key` that fit: one line for each card and configuration."""

    key: SolvedKey
    lines: tuple[SolveLine, ...]
