"""A run on disk as a list shows it. The field names are the JSON keys; sizes are in bytes."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

RunKind = Literal["run", "case"]
# Besides the statuses of a report, the last three for what has none.
RunStatus = Literal[
    "ok",
    "no",
    "partial",
    "error",
    "interrupted",
    "running",
    "unfinished",
    "unreadable",
    "foreign",
]


@dataclass(frozen=True, slots=True)
class StoredRun:
    """One folder of the history: a run of `probe` or `plan`, or a case that `run` kept.

    `command` is the verb, and `command_line` what a case watched. `status` is that of the report;
    "running" or "interrupted" if the run has not ended, "unfinished" if it was killed before it
    had results, "unreadable" if a file is damaged, "foreign" if the folder is not a run. `problem`
    explains the last three. `fits` of `rungs` rungs fit, or of so many cards. `outcome` says the
    same in words. `started_at` and `changed_at`, when a file was written last, are ISO 8601 in UTC.
    """

    name: str
    kind: RunKind
    path: str
    command: str | None
    command_line: tuple[str, ...]
    model: str | None
    device: str | None
    started_at: str | None
    changed_at: str | None
    status: RunStatus
    fits: int
    rungs: int
    outcome: str
    size_bytes: int
    problem: str | None
