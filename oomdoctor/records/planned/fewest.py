"""What `plan --gpus A..B --min` is asked and answers: the fewest GPUs on which each rung fits.

Sizes are integers in bytes, unknown is None. Field names are public JSON keys.
"""

from __future__ import annotations

from dataclasses import dataclass

from oomdoctor.records.result import Evidence


@dataclass(frozen=True, slots=True)
class GpuRange:
    """From how many to how many GPUs to look at."""

    low: int
    high: int


@dataclass(frozen=True, slots=True)
class GpuTry:
    """A number of GPUs that was tried for a rung.

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
    """The answer for a rung on a card.

    `gpus` is the fewest GPUs on which the rung fits, None if it fits on none of the range or could
    not be run. `peak_device_bytes` is the peak of one GPU there, at `micro_batch_size`.
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
    """The fewest GPUs from `low` to `high`: one line for each card and rung."""

    low: int
    high: int
    lines: tuple[FewestLine, ...]
