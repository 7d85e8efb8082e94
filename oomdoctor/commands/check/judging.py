"""Judges the run of a check: against its budget, and against the peak of its baseline."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import get_args

from oomdoctor.commands.check.running import Ran, peak_of
from oomdoctor.errors import ExitCode
from oomdoctor.records.job.measurement import BlockCategory
from oomdoctor.records.report.check import (
    Baseline,
    BaselineCheck,
    CheckOutcome,
    CheckPeak,
    CheckResult,
    GrownPart,
    HeldLine,
)
from oomdoctor.records.report.earlier_runs import ValueChange
from oomdoctor.records.report.report import Report
from oomdoctor.system.check_file import Check

_MOST_GROWN = 8  # lines of code
_Line = tuple[BlockCategory, str, str, str, str, str]


def exit_of(results: Sequence[CheckResult]) -> ExitCode:
    """3 if a peak is above what is allowed, 6 if one is not known, else 0."""
    if any(result.is_above for result in results):
        return ExitCode.NO
    passed = all(result.outcome == "passed" for result in results)
    return ExitCode.OK if passed else ExitCode.INCONCLUSIVE


def judged(check: Check, ran: Ran, folder: Path, accepted: CheckPeak | None) -> CheckResult:
    """The result of a check whose baseline is `accepted`, if it has one."""
    report = ran.report
    peak = None if report is None else peak_of(report, folder)
    limit = None if report is None or report.max_peak is None else report.max_peak.limit_bytes
    growth = None
    if accepted is not None:
        growth = round(accepted.peak_device_bytes * (1 + check.max_growth))
    outcome, reason = _outcome(ran, peak, growth)
    both = None if peak is None or accepted is None else (accepted, peak)
    return CheckResult(
        name=check.name,
        gpu=check.gpu,
        command=check.command,
        options=check.options,
        outcome=outcome,
        peak=peak,
        baseline=accepted,
        budget_bytes=limit,
        growth_bytes=growth,
        grown=() if both is None else tuple(grown(*both)),
        moved=() if both is None else tuple(moved(*both)),
        reason=reason,
        elapsed_s=ran.elapsed_s,
    )


def compared(
    check: Check, ran: Ran, folder: Path, before: CheckResult, revision: str, *, is_new: bool
) -> CheckResult:
    """The result of a check whose baseline is `before`, the same check at another revision.

    If that one failed there is nothing to compare with, so the check has not passed. Only a check
    that is new (`is_new`), which that revision does not have, may fail there.
    """
    has_ended = before.outcome not in ("failed", "timed_out")
    result = judged(check, ran, folder, before.peak if has_ended else None)
    if has_ended or is_new or result.outcome != "passed":
        return result
    return replace(result, outcome="failed", reason=f"at {revision}: {before.reason}")


def _outcome(
    ran: Ran, peak: CheckPeak | None, growth: int | None
) -> tuple[CheckOutcome, str | None]:
    if ran.exit_code is None:
        return "timed_out", ran.reason
    report = ran.report
    if report is not None and peak is None and not ran.exit_code:
        return "failed", "it used no GPU"
    if report is None or peak is None:
        return "failed", ran.reason or f"it ended with exit code {ran.exit_code} and said nothing"
    if report.status == "no":
        return "over", _too_small(report)
    if report.exit_code_of_command:
        said = "" if ran.reason is None else f": {ran.reason}"
        return "failed", f"the command ended with exit code {report.exit_code_of_command}{said}"
    if report.max_peak is not None and report.max_peak.above_bytes:
        return "over", None
    if report.unknown_sizes is not None and not report.unknown_sizes.is_sure:
        return "unsure", "memory depends on values that no kernel computed"
    if growth is not None and peak.peak_device_bytes > growth:
        return "grew", None
    return "passed", None


def _too_small(report: Report) -> str:
    usual = "it ran out of memory"
    if report.device is None or not any(rank.outcome == "oom" for rank in report.ranks):
        return usual
    return "it needs more than the card has"


def accepted_peak(
    baseline: Baseline, check: Check, versions: Mapping[str, str]
) -> CheckPeak | None:
    """The baseline of a check: the peak with the same versions, else the one written last."""
    peaks = [row.peak for row in baseline.checks if (row.name, row.gpu) == (check.name, check.gpu)]
    same = [peak for peak in peaks if dict(peak.versions) == dict(versions)]
    return next(reversed(same or peaks), None)


def with_peaks(
    baseline: Baseline, results: Sequence[CheckResult], checks: Sequence[Check] | None = None
) -> Baseline:
    """The baseline with today's peaks; peaks of other versions stay.

    Of the others, those of `checks` stay; None: all.
    """
    rows = baseline.checks if checks is None else checks
    named = {(row.name, row.gpu) for row in rows}
    today = [
        BaselineCheck(result.name, result.gpu, result.peak)
        for result in results
        if result.peak is not None and (result.outcome == "passed" or result.is_above)
    ]
    replaced = {(row.name, row.gpu, tuple(sorted(row.peak.versions.items()))) for row in today}
    kept = [
        row
        for row in baseline.checks
        if (row.name, row.gpu) in named
        and (row.name, row.gpu, tuple(sorted(row.peak.versions.items()))) not in replaced
    ]
    return Baseline(tuple(sorted([*kept, *today], key=lambda row: (row.name, row.gpu))))


def moved(before: CheckPeak, after: CheckPeak) -> Iterator[ValueChange]:
    """The libraries with another version than in the baseline."""
    for name in sorted({*before.versions, *after.versions}):
        versions = before.versions.get(name), after.versions.get(name)
        if versions[0] != versions[1]:
            yield ValueChange("environment", name, *versions)


def grown(before: CheckPeak, after: CheckPeak) -> Iterator[GrownPart]:
    """The categories that hold more than before, then the lines of code; the largest first.

    A line is the same as before if its text is, in the same function, and if it called the same
    function of a library: edits elsewhere move it. A baseline that names no library is compared
    without it.
    """
    if before.categories is not None and after.categories is not None:
        names: tuple[BlockCategory, ...] = get_args(BlockCategory)
        parts = [
            GrownPart(name, None, before.categories.of(name), after.categories.of(name))
            for name in names
        ]
        yield from _largest(parts)
    by_library = not before.lines or any(line.library is not None for line in before.lines)
    earlier, later = (_by_text(peak.lines, by_library) for peak in (before, after))
    lines = [
        GrownPart(key[0], line.where, earlier[key][0] if key in earlier else 0, held, line.library)
        for key, (held, line) in later.items()
    ]
    yield from _largest(lines)[:_MOST_GROWN]


def _largest(parts: Sequence[GrownPart]) -> list[GrownPart]:
    more = [part for part in parts if part.difference_bytes > 0]
    return sorted(more, key=lambda part: -part.difference_bytes)


def _by_text(lines: Sequence[HeldLine], by_library: bool) -> dict[_Line, tuple[int, HeldLine]]:
    """What each line holds of each category in all, and one of its parts."""
    totals: dict[_Line, int] = defaultdict(int)
    parts: dict[_Line, HeldLine] = {}
    for line in lines:
        where = line.where
        # Without its text a line is taken to be where it was.
        text = line.code or str(where.line)
        library = ("", "")
        if by_library and line.library is not None:
            library = line.library.file, line.library.function
        key = line.category, where.file, where.function, text, *library
        totals[key] += line.bytes
        parts.setdefault(key, line)
    return {key: (size, parts[key]) for key, size in totals.items()}
