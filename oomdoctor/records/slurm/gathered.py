"""Probes of one model on several GPU types, one Slurm job each. Field names are the JSON keys."""

from __future__ import annotations

from dataclasses import dataclass

from oomdoctor.records.result import ProbeResult


@dataclass(frozen=True, slots=True)
class GatheredJob:
    """One job. `outcome` is a word of its report, or Slurm's if there is none.

    `gpu_name`, `usable_bytes` and `results`, best first, are those of the report; empty without
    one. `reason` says why results are missing.
    """

    gpu_type: str
    job: str
    outcome: str
    reason: str | None
    gpu_name: str | None
    usable_bytes: int | None
    results: tuple[ProbeResult, ...]
