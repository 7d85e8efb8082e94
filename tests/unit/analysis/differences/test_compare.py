"""What changed between two reports, and whether it matters."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from example_gpu import gpu_report
from example_many_gpus import fewest_report
from example_plans import cards_report, plan_report, solve_report, sweep_report
from example_runs import fits, ran_out

from oomdoctor.analysis.differences.compare import compared
from oomdoctor.analysis.differences.judging import SEGMENT, Sides
from oomdoctor.analysis.differences.rows import rows_of, rungs_of
from oomdoctor.analysis.fit import PeakErrors
from oomdoctor.records.codec import loads
from oomdoctor.records.job.result import ProbeResult
from oomdoctor.records.job.simulation import PeakErrorRecord
from oomdoctor.records.report.earlier_runs import DiffAnswer, RungDiff
from oomdoctor.records.report.report import Report
from oomdoctor.records.report.user_training import UserTraining
from oomdoctor.render.diff_page import headline
from oomdoctor.units import GIB, MIB

ERRORS = PeakErrors(
    tuple(
        PeakErrorRecord(reference, metric, None, None, None, 20, 0.0, 0.0, p95)
        for reference, metric, p95 in (
            ("emulated", "allocated", 0.01),
            ("emulated", "reserved", 0.02),
            ("published", "allocated", 0.05),
        )
    ),
    None,
    None,
)
SIDES = Sides(ERRORS, ERRORS, 100 * MIB)


def diff(before: Report, after: Report) -> DiffAnswer:
    return compared(before, after, ("a", "b"), SIDES)


def fitting(report: Report) -> int:
    return next(i for i, one in enumerate(report.results) if one.outcome == "fits")


def with_one(report: Report, change: Callable[[ProbeResult], ProbeResult]) -> Report:
    """The report with its first rung that fits changed."""
    place = fitting(report)
    results = list(report.results)
    results[place] = change(results[place])
    return replace(report, results=tuple(results))


def first(answer: DiffAnswer) -> RungDiff:
    return answer.rungs[0]


def taller(bytes_: int) -> Callable[[ProbeResult], ProbeResult]:
    def change(one: ProbeResult) -> ProbeResult:
        assert one.peak_device_bytes is not None
        return replace(one, peak_device_bytes=one.peak_device_bytes + bytes_)

    return change


def as_(evidence: str, report: Report) -> Report:
    results = tuple(replace(one, evidence=evidence) for one in report.results)  # type: ignore[arg-type]
    return replace(report, results=results)


def test_the_same_report_has_no_change() -> None:
    for report in (gpu_report(), plan_report(), cards_report(), ran_out()):
        answer = diff(report, report)
        assert answer.verdict == "same"
        assert len(answer.rungs) == len(rows_of(report)) > 0
        assert {one.verdict for one in answer.rungs} == {"same"}
        assert not answer.environment and not answer.settings and not answer.notes
        assert not answer.only_before and not answer.only_after


@pytest.mark.parametrize(
    ("grown", "verdict"),
    [(SEGMENT, "within"), (SEGMENT + 1, "worse"), (-SEGMENT, "within"), (-SEGMENT - 1, "better")],
)
def test_two_measurements_may_differ_by_a_segment(grown: int, verdict: str) -> None:
    report = gpu_report()
    place = fitting(report)
    results = list(report.results)
    results[place] = replace(results[place], peak_device_bytes=4 * GIB)
    report = replace(report, results=tuple(results))
    assert first(diff(report, with_one(report, taller(grown)))).verdict == verdict


def test_two_predictions_differ_by_the_error_that_they_do_not_share() -> None:
    report = as_("predicted", gpu_report())
    report = with_one(report, lambda one: replace(one, peak_device_bytes=100 * MIB * 100))
    for percent, verdict in ((1.9, "within"), (2.2, "worse")):
        grown = int(100 * MIB * percent)
        rung = first(diff(report, with_one(report, taller(grown))))
        assert rung.verdict == verdict
        number = next(q for q in rung.quantities if q.quantity == "peak_device_bytes")
        assert number.uncertainty == pytest.approx(0.02 * (100 * MIB * 100 + grown))


def test_a_prediction_and_a_measurement_differ_by_the_whole_error_and_the_context() -> None:
    measured = with_one(gpu_report(), lambda one: replace(one, peak_device_bytes=10 * GIB))
    predicted = as_("predicted", measured)
    for bytes_, verdict in ((int(0.07 * 10 * GIB) + 90 * MIB, "within"), (GIB, "worse")):
        answer = diff(predicted, with_one(measured, taller(bytes_)))
        assert first(answer).verdict == verdict
        assert "before is predicted, after is measured" in answer.notes


def test_a_prediction_beside_the_emulated_gpu_differs_by_the_error_of_the_simulation() -> None:
    emulated = with_one(
        as_("emulated", gpu_report()),
        lambda one: replace(one, peak_device_bytes=10 * GIB, tokens_per_s=None),
    )
    assert emulated.machine is not None
    machine = replace(emulated.machine, gpu_name=f"{emulated.machine.gpu_name} (emulated)")
    emulated = replace(emulated, machine=machine)
    predicted = as_("predicted", gpu_report())
    for bytes_, verdict in ((int(0.019 * 10 * GIB), "within"), (int(0.022 * 10 * GIB), "worse")):
        before = with_one(predicted, lambda one: replace(one, peak_device_bytes=10 * GIB))
        answer = diff(before, with_one(emulated, taller(bytes_)))
        assert first(answer).verdict == verdict
        assert answer.notes == ("before is predicted, after is emulated",)


def test_a_rung_that_no_longer_fits_stands_first_and_is_worse() -> None:
    report = gpu_report()

    def lost(one: ProbeResult) -> ProbeResult:
        return replace(one, outcome="oom", tokens_per_s=None, missed_by_bytes=GIB)

    after = with_one(report, lost)
    answer = diff(report, after)
    assert (answer.verdict, first(answer).verdict) == ("worse", "worse")
    assert (first(answer).outcome_before, first(answer).outcome_after) == ("fits", "oom")
    assert first(answer).missed_by_bytes == GIB
    back = diff(after, report)
    assert (back.verdict, first(back).verdict) == ("better", "better")


def test_a_rung_that_was_skipped_says_nothing() -> None:
    report = gpu_report()
    answer = diff(report, with_one(report, lambda one: replace(one, outcome="skipped")))
    assert answer.verdict == "different"


def test_a_package_that_is_missing_now_is_no_worse_answer() -> None:
    report = gpu_report()
    reason = "needs Liger kernels: pip install liger-kernel; lower bound 942 MiB"
    after = with_one(report, lambda one: replace(one, outcome="unsupported", reason=reason))
    answer = diff(report, after)
    assert (answer.verdict, diff(after, report).verdict) == ("different", "different")
    text = headline(answer, "+-")[0]
    assert "1 of" in text and "needs a package that is not installed" in text
    other = diff(report, with_one(report, lambda one: replace(one, outcome="unsupported")))
    assert other.verdict == "worse"


@pytest.mark.parametrize(
    ("speed", "verdict"), [(0.97, "within"), (0.95, "worse"), (1.05, "better")]
)
def test_a_speed_counts_beyond_both_spreads(speed: float, verdict: str) -> None:
    report = with_one(
        gpu_report(), lambda one: replace(one, tokens_per_s=1000.0, tokens_per_s_spread=0.02)
    )
    after = with_one(
        report, lambda one: replace(one, tokens_per_s=1000.0 * speed, tokens_per_s_spread=0.02)
    )
    assert first(diff(report, after)).verdict == verdict


def test_without_a_spread_a_speed_is_only_different() -> None:
    report = with_one(gpu_report(), lambda one: replace(one, tokens_per_s_spread=None))
    after = with_one(report, lambda one: replace(one, tokens_per_s=1.0))
    assert first(diff(report, after)).verdict == "different"


def test_labels_do_not_matter_and_configurations_do() -> None:
    report = gpu_report()
    renamed = with_one(report, lambda one: replace(one, label="renamed"))
    assert diff(report, renamed).verdict == "same"
    other = with_one(report, lambda one: replace(one, config=replace(one.config, lora_rank=99)))
    answer = diff(report, other)
    assert len(answer.only_before) == len(answer.only_after) == 1


def test_what_the_command_line_sets_for_all_rungs_does_not_part_them() -> None:
    report = gpu_report()
    longer = replace(
        report,
        results=tuple(
            replace(one, config=replace(one.config, sequence_length=8192)) for one in report.results
        ),
    )
    answer = diff(report, longer)
    assert not answer.only_before and not answer.only_after
    assert {change.name for one in answer.rungs for change in one.settings} == {"sequence_length"}


def test_two_sizes_are_compared_at_the_one_that_both_tried() -> None:
    report = gpu_report()
    place = fitting(report)
    try_ = replace(report.results[place].tries[0], outcome="fits")
    tries = [
        tuple(replace(try_, micro_batch_size=size, peak_bytes=size * GIB + more) for size in sizes)
        for sizes, more in (((1, 2, 4), 0), ((1, 2), GIB))
    ]
    both = [
        with_one(
            report,
            lambda one, tried=tried, size=size: replace(  # type: ignore[misc]
                one, tries=tried, micro_batch_size=size, max_micro_batch_size=size
            ),
        )
        for tried, size in zip(tries, (4, 2), strict=True)
    ]
    numbers = {q.quantity: q for q in first(diff(*both)).quantities}
    peak = numbers["peak_device_bytes"]
    assert (peak.at_micro_batch, peak.before, peak.after) == (2, 2 * GIB, 3 * GIB)
    assert numbers["max_micro_batch_size"].verdict == "worse"
    assert numbers["micro_batch_size"].verdict == "different"


def test_versions_driver_and_settings() -> None:
    report = gpu_report()
    assert report.machine is not None and report.request is not None
    changed: dict[str, Any] = {
        "machine": replace(
            report.machine,
            driver_version="999.1",
            versions={**report.machine.versions, "torch": "9.9"},
        ),
        "request": replace(report.request, seed=report.request.seed + 1),
    }
    answer = diff(report, replace(report, **changed))
    assert {one.name for one in answer.environment} == {"torch", "driver"}
    assert [one.name for one in answer.settings] == ["seed"]


def test_another_card_and_another_model_are_named() -> None:
    before, after = gpu_report(), plan_report()
    assert after.request is not None
    model = replace(after.request.model, name="other/model")
    answer = diff(before, replace(after, request=replace(after.request, model=model)))
    assert any("models differ" in note for note in answer.notes)


def test_ranks_of_a_command_are_compared() -> None:
    report = fits()
    ranks = tuple(
        replace(rank, peak_allocated_bytes=rank.peak_allocated_bytes + GIB) for rank in report.ranks
    )
    answer = diff(report, replace(report, ranks=ranks))
    assert answer.verdict == "worse"
    assert first(answer).label.startswith("rank ")


def test_what_solve_and_min_found_is_compared() -> None:
    """A smaller value that fits is worse, and so are more GPUs."""
    solved, fewest = solve_report(), fewest_report()
    assert solved.solve is not None and fewest.fewest is not None
    for report in (solved, fewest):
        assert {one.verdict for one in diff(report, report).rungs} == {"same"}
    line = next(one for one in solved.solve.lines if one.largest is not None)
    assert line.largest is not None
    less = replace(line, largest=line.largest // 2)
    lines = tuple(less if one is line else one for one in solved.solve.lines)
    answer = diff(solved, replace(solved, solve=replace(solved.solve, lines=lines)))
    rung = first(answer)
    assert (answer.verdict, rung.verdict) == ("worse", "worse") and line.label in rung.label
    (change,) = rung.quantities
    assert (change.quantity, change.after) == ("largest_value", less.largest)
    assert "only a smaller value" in headline(answer, "+-")[0]

    found = next(one for one in fewest.fewest.lines if one.gpus is not None)
    assert found.gpus is not None
    more = replace(found, gpus=found.gpus + 1)
    rows = tuple(more if one is found else one for one in fewest.fewest.lines)
    answer = diff(replace(fewest, fewest=replace(fewest.fewest, lines=rows)), fewest)
    assert (answer.verdict, first(answer).quantities[0].quantity) == ("better", "fewest_gpus")
    assert "needs fewer GPUs" in headline(answer, "+-")[0]


def test_a_sweep_is_compared_value_by_value() -> None:
    report = sweep_report()
    assert report.sweep is not None
    several = replace(report, results=())  # as for several cards
    assert {one.verdict for one in diff(several, several).rungs} == {"same"}
    line = next(one for one in report.sweep.lines if any(p.fits for p in one.peaks))
    peaks = tuple(replace(peak, fits=False) if peak.fits else peak for peak in line.peaks)
    lines = tuple(replace(one, peaks=peaks) if one is line else one for one in report.sweep.lines)
    after = replace(several, sweep=replace(report.sweep, lines=lines))
    answer = diff(several, after)
    assert answer.verdict == "worse"
    lost = [one for one in answer.rungs if one.verdict == "worse"]
    assert len(lost) == sum(bool(peak.fits) for peak in line.peaks)
    # Another value of a sweep is another row, not the same row with another length.
    shorter = replace(line, peaks=line.peaks[:-1])
    fewer = replace(report.sweep, lines=(shorter,))
    answer = diff(replace(several, sweep=replace(report.sweep, lines=(line,))),
                  replace(several, sweep=fewer))  # fmt: skip
    assert len(answer.only_before) == 1 and not answer.only_after


def test_files_of_a_training_are_named_and_not_copied() -> None:
    before, after = plan_report(), plan_report()
    assert before.request is not None and after.request is not None
    config = before.results[0].config
    training = UserTraining((), None, None, None, config, (), (), ())
    files = ("axolotl:train.yml", "accelerate.yaml")
    request = replace(after.request, from_files=files, user_training=training)
    found = diff(before, replace(after, request=request)).settings
    assert [(one.name, one.before, one.after) for one in found] == [
        ("from", None, "axolotl:train.yml, accelerate.yaml")
    ]


def test_the_rung_of_the_users_file_is_compared_after_the_file_changed() -> None:
    def mine(rank: int) -> Report:
        def change(one: ProbeResult) -> ProbeResult:
            config = replace(one.config, method="lora", lora_rank=rank)
            return replace(one, label="yours", config=config)

        return with_one(gpu_report(), change)

    answer = diff(mine(8), mine(64))
    (pair,) = [one for one in answer.rungs if one.label == "yours"]
    assert [(change.name, change.before, change.after) for change in pair.settings] == [
        ("lora_rank", "8", "64")
    ]


EARLIER = Path(__file__).parents[3] / "data" / "earlier" / "plans"


@pytest.mark.parametrize("commit", ["edf51f1", "9c6cd28", "6956fbc"])
@pytest.mark.parametrize("question", ["solve", "min", "sweep"])
def test_reports_of_every_earlier_commit_compare_with_todays(question: str, commit: str) -> None:
    """Each was made by that commit, when a rung had 30, 48 and 50 keys that were all hashed."""
    before, after = (
        loads(Report, (EARLIER / f"{question}-{name}.json").read_text(encoding="utf-8"))
        for name in (commit, "6956fbc")
    )
    answer = diff(before, keyed_as_today(after))
    assert answer.rungs and (answer.only_before, answer.only_after) == ((), ())
    assert {one.label for one in answer.rungs} == {one.label_after for one in answer.rungs}


def keyed_as_today(report: Report) -> Report:
    """The report of a sweep, --solve or --min with keys as if it were made now."""
    for name in ("solve", "fewest", "sweep"):
        answer = getattr(report, name)
        if answer is not None:
            lines = tuple(
                replace(line, key=config.key())
                for line, config in rungs_of(report, answer.lines)
                if config is not None
            )
            assert len(lines) == len(answer.lines)
            return replace(report, **{name: replace(answer, lines=lines)})
    raise AssertionError("not a report of these questions")
