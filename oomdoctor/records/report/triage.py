"""What `triage` says of many jobs: a line each, and how many died of what.

Field names are the JSON keys. Sizes are integers in bytes, unknown is None.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from oomdoctor.records.job.result import ProbeResult
from oomdoctor.records.report.diagnosis import CauseName, Confidence, ReadPhase, Resource

# oom: memory ran out. other: something else ended it. unknown: neither its output nor Slurm says
# what. ended: it completed, or it has not ended.
TriageOutcome = Literal["oom", "other", "unknown", "ended"]
TriageKey = Literal["user", "partition", "cause"]
TRIAGE_KEYS: tuple[TriageKey, ...] = ("user", "partition", "cause")
JOBS = "jobs.tsv"  # of a folder of submitted probes: a line a job, its GPU type and its id


@dataclass(frozen=True, slots=True)
class TriagedJob:
    """One job or log.

    `source` is the id of the job or the name of the file. `state`, `exit_code` and `ended_at` are
    Slurm's words. `reason` is the cause in a word or two: a `cause` of memory failures, the kind of
    another error, or Slurm's state. `why` is a sentence. `where` is the user's own line,
    `FILE:LINE`. `remedy` is the first change that helps, and `line` what to type for it.
    """

    source: str
    log: str | None
    outcome: TriageOutcome
    resource: Resource
    reason: str
    cause: CauseName | None
    confidence: Confidence | None
    phase: ReadPhase | None
    why: str
    where: str | None
    remedy: str | None
    line: str | None
    job: str | None = None
    name: str | None = None
    user: str | None = None
    partition: str | None = None
    state: str | None = None
    exit_code: str | None = None
    ended_at: str | None = None
    requested_bytes: int | None = None
    peak_bytes: int | None = None


@dataclass(frozen=True, slots=True)
class TriageGroup:
    """The jobs of one user or partition, or with one reason. `reasons` are the most frequent."""

    key: str
    jobs: int
    oom: int
    other: int
    unknown: int
    reasons: tuple[str, ...]
    remedy: str | None


@dataclass(frozen=True, slots=True)
class Triage:
    """The answer of `triage`: jobs in the order of the command line or of Slurm, and groups."""

    since: str | None
    by: TriageKey | None
    jobs: tuple[TriagedJob, ...]
    groups: tuple[TriageGroup, ...]
    oom: int
    other: int
    unknown: int
    ended: int


@dataclass(frozen=True, slots=True)
class GatheredJob:
    """One job. `outcome` is a word of its report, or Slurm's if there is none.

    `gpu_name`, `usable_bytes` and `results`, best first, are taken from the report; empty without
    one. `reason` says why results are missing.
    """

    gpu_type: str
    job: str
    outcome: str
    reason: str | None
    gpu_name: str | None
    usable_bytes: int | None
    results: tuple[ProbeResult, ...]
