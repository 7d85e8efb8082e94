"""The page of `check`: the answer, a row for each check, and what grew where one failed."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import PurePath
from typing import Any

from oomdoctor.records.job.measurement import CATEGORY_WORDS
from oomdoctor.records.report.check import (
    CHECK_WORDS,
    Baseline,
    CheckAnswer,
    CheckResult,
    GrownPart,
    HeldLine,
)
from oomdoctor.records.report.report import Report
from oomdoctor.records.report.run import Place
from oomdoctor.render.blocks import Block, Cells, Column, Look, Note, Section, figures, table_of
from oomdoctor.render.diff_page import changed
from oomdoctor.render.formats.csv_rows import named, record_rows
from oomdoctor.render.words import counted
from oomdoctor.units import DASH, format_bytes

_CELLS: Cells[CheckResult] = (
    (Column("check"), lambda result: result.name),
    (Column("card"), lambda result: result.gpu),
    (Column("outcome", tone=True), lambda result: CHECK_WORDS[result.outcome]),
    (figures("peak"), lambda result: _device(result.peak)),
    (figures("allowed", 1), lambda result: format_bytes(_allowed(result))),
    (figures("baseline", 2), lambda result: _device(result.baseline)),
    (figures("change", 1), lambda result: _change(result)),
)
_PARTS: Cells[GrownPart] = (
    (Column("category"), lambda part: CATEGORY_WORDS[part.category]),
    (Column("line", 1), lambda part: _at(part.where)),
    (Column("library line", 2), lambda part: _named(part.library)),
    (figures("before"), lambda part: format_bytes(part.before_bytes)),
    (figures("now"), lambda part: format_bytes(part.after_bytes)),
    (figures("change"), lambda part: f"+{format_bytes(part.difference_bytes)}"),
)
_HELD: Cells[HeldLine] = (
    (Column("category"), lambda line: CATEGORY_WORDS[line.category]),
    (Column("line", 1), lambda line: _at(line.where)),
    (Column("library line", 2), lambda line: _named(line.library)),
    (figures("bytes"), lambda line: format_bytes(line.bytes)),
)
_MOST_HELD = 8  # lines of code


def check_sections(report: Report, look: Look) -> list[Section]:
    """The answer first, then the table, then what grew and what libraries changed."""
    answer = report.check
    if answer is None:
        return []
    sections = [
        Section("", (Note(_headline(answer), "strong"), *_asides(answer))),
        Section("", (table_of(answer.results, _CELLS).without_empty_columns(),)),
    ]
    is_alone = len(answer.results) == 1  # then the first line has the reason
    for result in answer.results:
        told = _told(result, is_alone=is_alone, verbose=look.verbose)
        if told:
            sections.append(Section(result.title, tuple(told)))
    return sections


def _headline(answer: CheckAnswer) -> str:
    bad = [result for result in answer.results if result.outcome != "passed"]
    total = len(answer.results)
    if not bad:
        updated = "; the baseline was updated" if answer.updated else ""
        return f"{counted(total, 'check')} passed{updated}."
    first = max(bad, key=lambda result: result.above_bytes)
    what = "The check" if total == 1 else f"{len(bad)} of {total} checks"
    return f"{what} did not pass: {first.title}: {why(first)}."


def _asides(answer: CheckAnswer) -> list[Note]:
    new = [result for result in answer.results if result.baseline is None and result.peak]
    if answer.against is not None:
        notes = [Note(f"The baseline is {answer.against}, run with the same libraries.")]
        titles = ", ".join(result.title for result in new if result.outcome == "passed")
        return [*notes, Note(f"New, with nothing to compare: {titles}.")] if titles else notes
    if answer.updated:
        return [Note(f"Today's peaks are in {answer.baseline_file}.")]
    if new:
        return [Note(f"{counted(len(new), 'check')} without a baseline in {answer.baseline_file}.")]
    return []


def why(result: CheckResult) -> str:
    """Why a check did not pass."""
    if result.is_above and result.above_bytes:
        peak, above = _device(result.peak), format_bytes(result.above_bytes)
        limit = "the budget" if result.outcome == "over" else "the baseline allows"
        return f"peak {peak}, {above} more than {limit}"
    return result.reason or CHECK_WORDS[result.outcome]


def grown_lines(result: CheckResult) -> Iterator[str]:
    """`activations +1.20 GiB at model.py:88 (linear.py:134)`, for each part that grew, then moved
    libraries. If none grew, what the lines hold that hold most.
    """
    for part in result.grown:
        size = f"{CATEGORY_WORDS[part.category]} +{format_bytes(part.difference_bytes)}"
        yield size + _places(part.where, part.library)
    for line in _largest_held(result):
        size = f"{CATEGORY_WORDS[line.category]} {format_bytes(line.bytes)}"
        yield size + _places(line.where, line.library)
    yield from map(changed, result.moved)


def updated_lines(file: str, earlier: Baseline, now: Baseline) -> Iterator[str]:
    """What an update changed in a baseline file: how many peaks, and those that are not as before.

    A check has a peak for each set of versions, so with other versions its peak is new.
    """
    before, after = _by_versions(earlier), _by_versions(now)
    new = [key for key in after if key not in before]
    changed = [key for key in after if before.get(key, after[key]) != after[key]]
    same = len(after) - len(new) - len(changed)
    yield f"{file}: {counted(len(new), 'new peak')}, {len(changed)} changed, {same} as before"
    for name, gpu, versions in new:
        peak = format_bytes(after[name, gpu, versions])
        yield f"new      {peak}  {name} on {gpu}"
    for name, gpu, versions in changed:
        key = name, gpu, versions
        sizes = f"{format_bytes(before[key])} -> {format_bytes(after[key])}"
        yield f"changed  {sizes}  {name} on {gpu}"


def _by_versions(baseline: Baseline) -> dict[tuple[str, str, tuple[tuple[str, str], ...]], int]:
    return {
        (row.name, row.gpu, tuple(sorted(row.peak.versions.items()))): row.peak.peak_device_bytes
        for row in baseline.checks
    }


def _largest_held(result: CheckResult) -> tuple[HeldLine, ...]:
    """The lines that hold most, of a peak that is too large and has not grown."""
    if result.grown or not result.is_above or result.peak is None:
        return ()
    return result.peak.lines[:_MOST_HELD]


def _at(where: Place | None) -> str:
    return "" if where is None else f"{where.file}:{where.line}"


def _named(library: Place | None) -> str:
    """The line without its folder, as `run` shows it."""
    return "" if library is None else f"{PurePath(library.file).name}:{library.line}"


def _places(where: Place | None, library: Place | None) -> str:
    at = "" if where is None else f" at {_at(where)}"
    return at if library is None else f"{at} ({_named(library)})"


def _told(result: CheckResult, *, is_alone: bool, verbose: bool) -> list[Block]:
    """What there is to say about a check that its row does not say."""
    told: list[Block] = []
    bad = result.outcome != "passed"
    if bad and result.reason is not None and not is_alone:
        told.append(Note(f"{result.reason}.", "normal"))
    if (bad or verbose) and result.grown:
        told.append(table_of(result.grown, _PARTS).without_empty_columns())
    if held := _largest_held(result):
        told.append(table_of(held, _HELD).without_empty_columns())
    if (bad or verbose) and result.moved:
        changes = ", ".join(map(changed, result.moved))
        told.append(
            Note(
                f"The baseline is of other libraries: {changes}. To see what the code changed, run "
                "both with today's: oomdoctor check --against REVISION"
            )
        )
    return told


def _device(peak: Any) -> str:
    return DASH if peak is None else format_bytes(peak.peak_device_bytes)


def _allowed(result: CheckResult) -> int | None:
    limits = [size for size in (result.budget_bytes, result.growth_bytes) if size is not None]
    return min(limits, default=None)


def _change(result: CheckResult) -> str:
    if result.peak is None or result.baseline is None:
        return ""
    before, now = result.baseline.peak_device_bytes, result.peak.peak_device_bytes
    return f"{(now - before) / before:+.1%}" if now != before else "none"


def check_rows(report: Report) -> Iterator[list[Any]]:
    """The headings, then a row a check. Headings are the keys in JSON."""
    columns = (
        *named(("name", "gpu", "outcome")),
        *((f"peak.{name}", f"peak.{name}") for name in _PEAKS),
        *((f"baseline.{name}", f"baseline.{name}") for name in _PEAKS),
        *named(("budget_bytes", "growth_bytes", "reason", "elapsed_s")),
    )
    return record_rows(columns, report.check.results if report.check is not None else ())


_PEAKS = ("peak_device_bytes", "peak_reserved_bytes", "peak_allocated_bytes")
