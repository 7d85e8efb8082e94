"""What `plan --solve` is asked and answers: the largest value of one setting that still fits.

Sizes are integers in bytes, unknown is None. Field names are public JSON keys.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

SolvedKey = Literal["sequence_length", "micro_batch_size", "lora_rank"]


@dataclass(frozen=True, slots=True)
class SolveLine:
    """The answer for a rung on a card; both `largest` and `next_value` were simulated.

    `largest` is the largest value that surely fits, None if none does or if nothing was predicted.
    At `next_value`, the next one up, the rung needs `next_peak_device_bytes` and is short by
    `next_missed_by_bytes`, or with `next_borderline` closer to the limit than the prediction error.
    If nothing fits, `next_value` is the smallest value. `limited_by` says why the search ended
    without a value that does not fit. `reason` says why there is no answer.
    `micro_batch_size`, `sequence_length` and `effective_batch_size` are those at `largest`. `rung`
    is the configuration at `largest`, as `--rung` reads it.
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
    """The largest values of `key` that fit: one line for each card and rung."""

    key: SolvedKey
    lines: tuple[SolveLine, ...]
