"""What `check` reports: training commands on emulated GPUs, each against its budget and baseline.

The field names are the JSON keys. Sizes are integers in bytes, unknown is None.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

from oomdoctor.records.job.measurement import BlockCategory, CategoryBytes
from oomdoctor.records.report.earlier_runs import ValueChange
from oomdoctor.records.report.run import Place

BASELINE_SCHEMA = "oomdoctor-baseline/1"
CheckOutcome = Literal["passed", "over", "grew", "unsure", "failed", "timed_out"]
CHECK_WORDS: Mapping[CheckOutcome, str] = {
    "passed": "passed",
    "over": "above the budget",
    "grew": "grew",
    "unsure": "unsure",
    "failed": "failed",
    "timed_out": "timed out",
}


@dataclass(frozen=True, slots=True)
class HeldLine:
    """The bytes of one category that a line of code had made, at the peak.

    `code` is the text of the line; None where its file cannot be read. `library` is the innermost
    line of the libraries that it called; None if it called none.
    """

    category: BlockCategory
    where: Place
    code: str | None
    bytes: int
    library: Place | None = None


@dataclass(frozen=True, slots=True)
class CheckPeak:
    """The fullest GPU of a run at its peak; what a baseline keeps of it.

    `peak_device_bytes` is what nvidia-smi would show: the reserved peak and the CUDA context.
    `categories` add up to the allocated peak, and `lines` are those that held most of it. Files are
    relative to the folder of the checks. `versions` has the libraries that ran.
    """

    peak_device_bytes: int
    peak_reserved_bytes: int
    peak_allocated_bytes: int
    categories: CategoryBytes | None
    lines: tuple[HeldLine, ...]
    versions: Mapping[str, str]


@dataclass(frozen=True, slots=True)
class BaselineCheck:
    """The peak of a check that was accepted, by its name and its card as written."""

    name: str
    gpu: str
    peak: CheckPeak


@dataclass(frozen=True, slots=True)
class Baseline:
    """The baseline file. A check has one peak for each set of versions."""

    checks: tuple[BaselineCheck, ...] = ()
    schema: str = BASELINE_SCHEMA


@dataclass(frozen=True, slots=True)
class GrownPart:
    """What a category held at the peak before and now; with `where`, what a line of it made.

    `library` is the innermost line of the libraries that this line called.
    """

    category: BlockCategory
    where: Place | None
    before_bytes: int
    after_bytes: int
    library: Place | None = None

    @property
    def difference_bytes(self) -> int:
        """By how much it grew."""
        return self.after_bytes - self.before_bytes


@dataclass(frozen=True, slots=True)
class CheckResult:
    """One command on one card, with the `options` of `oomdoctor run` that it has.

    `budget_bytes` is what `max_peak` allows on the device, `growth_bytes` what the baseline and
    `max_growth` allow; None where they say nothing. `grown` are the categories and the lines that
    hold more than in the baseline. `moved` are libraries with another version than in the baseline.
    `reason` says why there is no peak, or why it is not sure.
    """

    name: str
    gpu: str
    command: tuple[str, ...]
    options: tuple[str, ...]
    outcome: CheckOutcome
    peak: CheckPeak | None
    baseline: CheckPeak | None
    budget_bytes: int | None
    growth_bytes: int | None
    grown: tuple[GrownPart, ...]
    moved: tuple[ValueChange, ...]
    reason: str | None
    elapsed_s: float

    @property
    def title(self) -> str:
        """`sft on RTX 4090`."""
        return f"{self.name} on {self.gpu}"

    @property
    def is_above(self) -> bool:
        """Whether it needs more than it may; other outcomes than "passed" are no answer."""
        return self.outcome in ("over", "grew")

    @property
    def above_bytes(self) -> int:
        """By how much the peak is above what the outcome is about."""
        allowed = self.growth_bytes if self.outcome == "grew" else self.budget_bytes
        if self.peak is None or allowed is None:
            return 0
        return max(0, self.peak.peak_device_bytes - allowed)


@dataclass(frozen=True, slots=True)
class CheckAnswer:
    """The checks of a file. `against` is the git revision that was run as the baseline.

    `updated` says that today's peaks were written to the baseline.
    """

    file: str
    baseline_file: str
    against: str | None
    updated: bool
    results: tuple[CheckResult, ...]
