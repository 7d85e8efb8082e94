"""`check`: what is above its budget, what grew, and what a baseline keeps."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from xml.etree import ElementTree

import pytest
from example_runs import RANK, depends_on_values, fits, ran_out
from example_snapshots import grows

from oomdoctor.commands.check.judging import (
    accepted_peak,
    compared,
    exit_of,
    grown,
    judged,
    moved,
    with_peaks,
)
from oomdoctor.commands.check.running import Ran, peak_of
from oomdoctor.commands.run.max_peak import judged as judged_by_peak
from oomdoctor.errors import ExitCode
from oomdoctor.records.job.measurement import CategoryBytes
from oomdoctor.records.report.check import Baseline, CheckAnswer, CheckPeak, HeldLine
from oomdoctor.records.report.report import Report, bare_report
from oomdoctor.records.report.run import Place
from oomdoctor.render import render_report
from oomdoctor.render.check_page import grown_lines
from oomdoctor.render.formats import Style
from oomdoctor.render.junit import junit
from oomdoctor.system.check_file import Check
from oomdoctor.units import GIB, MIB

CHECK = Check("sft", "H100", ("python", "train.py"), None, 0.02, 60.0)
FOLDER = Path("/home/you/project")
PEAK = 2 * GIB
"""On the device, of the baseline."""


def _peak(bytes_now: int, *lines: HeldLine, versions: str = "2.12.0") -> CheckPeak:
    sizes = CategoryBytes(GIB, 0, 0, bytes_now - GIB, 0, 0, 0)
    return CheckPeak(bytes_now, bytes_now, bytes_now, sizes, lines, {"torch": versions})


def _line(line: int, code: str | None, size: int, file: str = "model.py") -> HeldLine:
    return HeldLine("activations", Place(file, line, "forward"), code, size)


def _ran(report: Report | None, exit_code: int | None = 0, reason: str | None = None) -> Ran:
    return Ran(report, exit_code, reason, 3.2)


def _report(peak: int) -> Report:
    return replace(fits(), ranks=(replace(RANK, peak_device_bytes=peak),))


@pytest.mark.parametrize(
    ("report", "allowed", "outcome", "code"),
    [
        (_report(PEAK), None, "passed", 0),
        (_report(round(PEAK * 1.02)), None, "passed", 0),
        (_report(round(PEAK * 1.02) + 1), None, "grew", 3),
        (_report(PEAK), "1GiB", "over", 3),
        (_report(PEAK), "80%", "passed", 0),
        (ran_out(), None, "over", 3),
        (replace(depends_on_values(), unknown_sizes=None), "50GiB", "over", 3),
        (replace(_report(PEAK), status="error", exit_code_of_command=1), None, "failed", 6),
    ],
)
def test_an_outcome_and_its_exit_code(
    report: Report, allowed: str | None, outcome: str, code: int
) -> None:
    result = judged(CHECK, _ran(judged_by_peak(report, allowed)), FOLDER, _peak(PEAK))
    assert result.outcome == outcome
    assert exit_of([result]) == code


@pytest.mark.parametrize(
    ("earlier", "is_new", "outcome", "reason"),
    [
        (_ran(_report(PEAK)), False, "passed", None),
        (_ran(_report(PEAK // 2)), False, "grew", None),
        (_ran(None, 2, "no such file"), False, "failed", "at main: no such file"),
        (_ran(None, None, "it took more than 9 s"), False, "failed", "at main: it took more"),
        (_ran(None, 2, "no such file"), True, "passed", None),
        (  # it reached a peak, and failed after it
            _ran(replace(_report(PEAK // 2), status="error", exit_code_of_command=1)),
            *(False, "failed", "at main: the command ended with exit code 1"),
        ),
    ],
)
def test_a_check_that_failed_at_the_other_revision_has_not_passed(
    earlier: Ran, is_new: bool, outcome: str, reason: str | None
) -> None:
    before = judged(CHECK, earlier, FOLDER, None)
    result = compared(CHECK, _ran(_report(PEAK)), FOLDER, before, "main", is_new=is_new)
    assert result.outcome == outcome
    assert (result.reason or "").startswith(reason or "") and bool(result.reason) == bool(reason)


def test_a_peak_that_depends_on_values_is_unsure() -> None:
    report = depends_on_values()
    assert report.unknown_sizes is not None
    unsure = replace(report, unknown_sizes=replace(report.unknown_sizes, upper_bytes=None))
    result = judged(CHECK, _ran(unsure), FOLDER, None)
    assert result.outcome == "unsure" and exit_of([result]) == ExitCode.INCONCLUSIVE


@pytest.mark.parametrize(
    ("ran", "outcome", "words"),
    [
        (_ran(None, None, "it took more than 60 s"), "timed_out", "60 s"),
        (_ran(None, 5, "no C compiler"), "failed", "no C compiler"),
        (_ran(None, 1, None), "failed", "exit code 1"),
        (_ran(replace(fits(), ranks=()), 0, "1 passed"), "failed", "it used no GPU"),
    ],
)
def test_without_a_peak_it_is_said_why(ran: Ran, outcome: str, words: str) -> None:
    result = judged(CHECK, ran, FOLDER, _peak(PEAK))
    assert result.outcome == outcome and words in (result.reason or "")
    assert result.grown == ()


def test_what_grew_is_named_by_category_and_by_line() -> None:
    """An edit that moves a line is no growth; a new line and more of the same line are."""
    before = _peak(PEAK, _line(10, "y = self.up(x)", 300 * MIB), _line(20, "z = y", 100 * MIB))
    after = _peak(
        PEAK + 700 * MIB,
        _line(12, "y = self.up(x)", 600 * MIB),
        _line(14, "s = y.sin()", 400 * MIB),
        _line(23, "z = y", 100 * MIB),
    )
    parts = [
        (part.where.line if part.where else None, part.difference_bytes // MIB)
        for part in grown(before, after)
    ]
    assert parts == [(None, 700), (14, 400), (12, 300)]


def test_the_files_of_lines_are_relative_to_the_checks() -> None:
    (device, *_) = grows().devices
    assert device.peak is not None
    own = Place(str(FOLDER / "src" / "model.py"), 3, "forward")
    library = Place("/venv/lib/python3.11/site-packages/torch/nn/linear.py", 9, "forward")
    pairs = (own, None), (None, library), (own, library)
    blocks = tuple(
        replace(device.peak.blocks[0], where=where, library_where=called) for where, called in pairs
    )
    peak = peak_of(
        replace(
            _report(PEAK), devices=(replace(device, peak=replace(device.peak, blocks=blocks)),)
        ),
        FOLDER,
    )
    assert peak is not None
    files = [(line.where.file, line.library and line.library.file) for line in peak.lines]
    name = "torch/nn/linear.py"
    assert files == [("src/model.py", None), (name, None), ("src/model.py", name)]


def test_one_line_of_a_trainer_grows_where_the_library_is_that_it_called() -> None:
    def line(size: int, function: str, number: int) -> HeldLine:
        library = Place("torch/nn/functional.py", number, function)
        return replace(_line(43, "trainer.train()", size), library=library)

    before = _peak(PEAK, line(GIB, "linear", 30), line(GIB, "silu", 80))
    after = _peak(3 * GIB, line(2 * GIB, "linear", 31), line(GIB, "silu", 81))
    (part,) = (part for part in grown(before, after) if part.where is not None)
    assert (part.library, part.difference_bytes) == (after.lines[0].library, GIB)
    # A baseline without libraries, as the first ones were, has the line as a whole.
    old = _peak(PEAK, _line(43, "trainer.train()", 2 * GIB))
    (part,) = (part for part in grown(old, after) if part.where is not None)
    assert (part.before_bytes, part.difference_bytes) == (2 * GIB, GIB)


def test_a_peak_above_its_budget_names_its_lines_without_a_baseline() -> None:
    library = Place("torch/nn/linear.py", 134, "forward")
    line = replace(_line(10, "y = self.up(x)", 900 * MIB), library=library)
    result = judged(CHECK, _ran(judged_by_peak(_report(PEAK), "1GiB")), FOLDER, None)
    result = replace(result, peak=_peak(PEAK, line))
    assert list(grown_lines(result)) == ["activations 900 MiB at model.py:10 (linear.py:134)"]
    answer = CheckAnswer("oomdoctor.toml", "oomdoctor-baseline.json", None, False, (result,))
    bare = bare_report("check", "no", 3, datetime(2026, 11, 29, tzinfo=UTC), 7.0)
    text = render_report(replace(bare, check=answer), "table", Style(terminal=True, width=80))
    assert "model.py:10" in text and "linear.py:134" in text
    assert list(grown_lines(replace(result, outcome="passed"))) == []


def test_a_baseline_has_a_peak_for_each_set_of_versions() -> None:
    def result(peak: CheckPeak) -> Baseline:
        report = replace(_report(peak.peak_device_bytes), versions=peak.versions)
        return with_peaks(baseline, [judged(CHECK, _ran(report), FOLDER, None)], [CHECK])

    baseline = Baseline()
    old, new = _peak(GIB, versions="2.11.0"), _peak(PEAK)
    baseline = result(old)
    baseline = result(new)
    baseline = result(_peak(3 * GIB))
    assert [row.peak.peak_device_bytes for row in baseline.checks] == [GIB, 3 * GIB]
    at = {
        version: accepted_peak(baseline, CHECK, {"torch": version})
        for version in ("2.11.0", "2.12.0", "2.13.0")
    }
    peaks = {version: peak and peak.peak_device_bytes for version, peak in at.items()}
    assert peaks == {"2.11.0": GIB, "2.12.0": 3 * GIB, "2.13.0": 3 * GIB}
    assert with_peaks(baseline, [], [replace(CHECK, name="other")]) == Baseline()


def test_the_page_and_junit_say_what_grew_and_which_library_moved() -> None:
    accepted = _peak(PEAK, _line(10, "y = self.up(x)", 300 * MIB), versions="2.12.0")
    grew = judged(CHECK, _ran(_report(3 * GIB)), FOLDER, accepted)
    now = _peak(3 * GIB, _line(10, "y = self.up(x)", 900 * MIB), versions="2.13.0")
    parts, libraries = tuple(grown(accepted, now)), tuple(moved(accepted, now))
    grew = replace(grew, peak=now, grown=parts, moved=libraries)
    broken = judged(replace(CHECK, name="lora"), _ran(None, 1, "boom"), FOLDER, None)
    answer = CheckAnswer("oomdoctor.toml", "oomdoctor-baseline.json", None, False, (grew, broken))
    bare = bare_report("check", "no", 3, datetime(2026, 11, 29, tzinfo=UTC), 7.0)
    text = render_report(replace(bare, check=answer), "table", Style(terminal=True, width=80))
    lines = text.splitlines()
    assert lines[0].startswith("2 of 2 checks did not pass: sft on H100: peak 3.00 GiB, ")
    assert any("model.py:10" in line and "+600 MiB" in line for line in lines)
    assert "torch 2.12.0 -> 2.13.0" in text and "boom" in text
    assert max(map(len, lines)) <= 80
    suite = ElementTree.fromstring(junit(answer))
    assert (suite.get("failures"), suite.get("errors")) == ("1", "1")
    failure = suite.find("testcase/failure")
    assert failure is not None and "activations +600 MiB at model.py:10" in (failure.text or "")
