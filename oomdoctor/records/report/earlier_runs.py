"""Runs on disk as a list shows them, and what `diff` says about two of them.

The field names are the JSON keys; sizes are in bytes."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from oomdoctor.records.job.result import Evidence

# "within": no more than the uncertainty. "different": neither better nor worse, or not known.
DiffVerdict = Literal["worse", "better", "different", "within", "same"]
ChangedPart = Literal["environment", "setting"]
Quantity = Literal[
    "peak_allocated_bytes", "peak_reserved_bytes", "peak_device_bytes", "tokens_per_s",
    "max_micro_batch_size", "micro_batch_size", "largest_value", "fewest_gpus",
]  # fmt: skip


@dataclass(frozen=True, slots=True)
class DiffSide:
    """One of the two runs. `name` is the name of the run, the case or the file.

    `evidence` is how most of its results were found; None if it has none. `rungs` counts what is
    compared: configurations, ranks of a watched command, or the best of each method on each card.
    """

    name: str
    command: str
    model: str | None
    device: str | None
    started_at: str
    evidence: Evidence | None
    oomdoctor: str
    rungs: int


@dataclass(frozen=True, slots=True)
class ValueChange:
    """A part of the environment or a setting that differs; None where it is not known."""

    part: ChangedPart
    name: str
    before: str | None
    after: str | None


@dataclass(frozen=True, slots=True)
class QuantityChange:
    """A number of a configuration on both sides.

    `relative` is the difference by the value before. `uncertainty` is in the unit of the quantity:
    a difference up to it says nothing; None if it is not known. "largest_value" is what `--solve`
    found, and "fewest_gpus" what `--min` did. With `at_micro_batch`, the peaks are from tries at
    this micro-batch size, because the two runs chose different sizes.
    """

    quantity: Quantity
    before: float | None
    after: float | None
    difference: float | None
    relative: float | None
    uncertainty: float | None
    verdict: DiffVerdict
    at_micro_batch: int | None = None


@dataclass(frozen=True, slots=True)
class CategoryChange:
    """What was alive at the peak, by category, where it differs."""

    category: str
    before_bytes: int
    after_bytes: int


@dataclass(frozen=True, slots=True)
class RungDiff:
    """A configuration that both runs have.

    `settings` are keys in which the two configurations differ, because the runs do.
    `outcome_before` and `outcome_after` are the outcomes of the two results, or of the ranks of a
    watched command. `missed_by_bytes` is by how much the later one is short, and `reason` why it
    was not run or failed.
    """

    key: str
    label: str
    label_after: str
    outcome_before: str
    outcome_after: str
    evidence_before: Evidence
    evidence_after: Evidence
    missed_by_bytes: int | None
    reason: str | None
    verdict: DiffVerdict
    settings: tuple[ValueChange, ...]
    quantities: tuple[QuantityChange, ...]
    categories: tuple[CategoryChange, ...]

    @property
    def lacks_package(self) -> bool:
        """Whether it ran before, and does not now because a package is not installed."""
        return self.outcome_before == "fits" and lacks_package(self.outcome_after, self.reason)


def lacks_package(outcome: str, reason: str | None) -> bool:
    """Whether a configuration did not run because a package is not installed."""
    return outcome == "unsupported" and "pip install" in (reason or "")


@dataclass(frozen=True, slots=True)
class DiffAnswer:
    """What changed from `before` to `after`, the most important configurations first.

    `verdict` is "worse" if any result is. `only_before` and `only_after` are labels that only one
    run has. `notes` say what limits the comparison, such as two different cards.
    """

    before: DiffSide
    after: DiffSide
    verdict: DiffVerdict
    environment: tuple[ValueChange, ...]
    settings: tuple[ValueChange, ...]
    rungs: tuple[RungDiff, ...]
    only_before: tuple[str, ...]
    only_after: tuple[str, ...]
    notes: tuple[str, ...]


RunKind = Literal["run", "case"]
# Besides the statuses of a report, the last three for what has none.
RunStatus = Literal[
    "ok", "no", "partial", "error", "interrupted", "running", "unfinished", "unreadable", "foreign"
]


@dataclass(frozen=True, slots=True)
class StoredRun:
    """One folder of the history: a run of `probe` or `plan`, or a case that `run` kept.

    `command` is the verb, and `command_line` what a case watched. `status` is the status of the
    report; "running" or "interrupted" if the run has not ended, "unfinished" if it was killed
    before it had results, "unreadable" if a file is damaged, "foreign" if the folder is not a run.
    `problem` explains the last three. `fits` of `rungs` configurations fit, or of so many cards.
    `outcome` says the same in words. `started_at` and `changed_at`, when a file was written last,
    are ISO 8601 in UTC.
    """

    name: str
    kind: RunKind
    path: str
    command: str | None = None
    command_line: tuple[str, ...] = ()
    model: str | None = None
    device: str | None = None
    started_at: str | None = None
    changed_at: str | None = None
    status: RunStatus = "foreign"
    fits: int = 0
    rungs: int = 0
    outcome: str = ""
    size_bytes: int = 0
    problem: str | None = None
