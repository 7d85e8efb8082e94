"""A simulated rung as attempts: which sizes, which peaks, and how near to the limit."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from analysis_make import GIB, measurement, request, rung, timing

from oomdoctor.analysis.search.dominance import Setting
from oomdoctor.analysis.search.ladder import Context
from oomdoctor.analysis.simulator.predicted_attempts import attempts_of_prediction, sizes_to_predict
from oomdoctor.analysis.verdict import conclude
from oomdoctor.records.configuration.config import TrainConfig
from oomdoctor.records.job.measurement import Breakdown
from oomdoctor.records.job.model import ParameterCounts
from oomdoctor.records.job.result import Attempt, ProbeResult
from oomdoctor.records.job.simulation import (
    DevicePrediction,
    PeakError,
    PredictedSize,
    Prediction,
    Target,
)

ESTIMATED = replace(timing(spread=0.25), stopped_by="estimated")
TARGET = Target("card", 10 * GIB, 9 * GIB, GIB // 2, None)
SIMULATED = Attempt(
    TrainConfig(), "fits", None, None, None, None, 2.5, "02-x", "2026-01-02T03:04:05+00:00"
)


def predicted(size: int, allocated: int, reserved: int | None, *, fits: bool) -> PredictedSize:
    """A size as the worker tells it: without a limit, and on the target."""
    return PredictedSize(
        micro_batch_size=size,
        measurement=measurement(
            peak_allocated_bytes=allocated,
            peak_reserved_bytes=reserved,
            peak_device_bytes=None,
            overhead_bytes=None,
            times=None,
        ),
        devices=(
            DevicePrediction("another", True, 1, None, None, None),
            DevicePrediction("card", fits, reserved, None, None, ESTIMATED),
        ),
    )


SETTING = Setting("cuda")


def attempts(*sizes: PredictedSize):
    config = rung(effective_batch_size=16).config
    return attempts_of_prediction(config, Prediction(sizes, 4, 32, ()), TARGET, SIMULATED, SETTING)


def test_the_divisors_are_predicted_and_a_fixed_size_alone():
    config = rung(effective_batch_size=12).config
    assert sizes_to_predict(config, None) == (1, 2, 3, 4, 6, 12)
    assert sizes_to_predict(config, 4) == (4,)


def test_of_very_many_divisors_those_below_doublings_stay():
    sizes = sizes_to_predict(rung(effective_batch_size=5040).config, None)
    assert len(sizes) <= 13
    assert all(5040 % size == 0 for size in sizes)
    assert sizes[:4] == (1, 2, 4, 8)


def test_what_fits_has_the_reserved_bytes_and_the_context_as_its_peak():
    (attempt,) = attempts(predicted(1, 6 * GIB, 7 * GIB, fits=True))
    assert attempt.outcome == "fits"
    assert attempt.measurement is not None
    assert attempt.measurement.peak_device_bytes == 7 * GIB + GIB // 2
    assert attempt.measurement.overhead_bytes == GIB // 2
    assert attempt.measurement.timing is not None
    assert (attempt.reason, attempt.config.micro_batch_size) == (None, 1)


def test_what_does_not_fit_says_how_much_it_is_short_by():
    (attempt,) = attempts(predicted(1, 12 * GIB, 14 * GIB, fits=False))
    assert attempt.outcome == "oom"
    assert attempt.measurement is not None
    assert attempt.measurement.peak_device_bytes == 14 * GIB + GIB // 2
    assert attempt.reason == "needs 14.5 GiB, short by 5.50 GiB"


def test_a_size_that_was_not_replayed_gives_a_lower_bound():
    found = attempts(
        predicted(1, 8 * GIB, 8 * GIB, fits=True), predicted(2, 12 * GIB, None, fits=False)
    )
    assert found[1].reason == "needs at least 12.5 GiB, short by at least 3.50 GiB"
    asked = rung(effective_batch_size=16)
    row = conclude(
        asked, found, None, Context("cuda", usable_bytes=9 * GIB), request(asked), "predicted"
    )
    assert [attempt.peak_is_lower_bound for attempt in row.tries] == [False, True]


def test_the_time_of_the_simulation_counts_once():
    found = attempts(predicted(1, GIB, GIB, fits=True), predicted(2, GIB, GIB, fits=True))
    assert [attempt.elapsed_s for attempt in found] == [2.5, 0.0]


def test_a_row_of_predictions_is_like_a_measured_one():
    found = attempts(
        predicted(1, 2 * GIB, 2 * GIB, fits=True), predicted(2, 12 * GIB, None, fits=False)
    )
    asked = rung(effective_batch_size=16)
    context = Context("cuda", usable_bytes=9 * GIB)
    row = conclude(asked, found, None, context, request(asked), "predicted")
    assert (row.outcome, row.evidence, row.micro_batch_size) == ("fits", "predicted", 1)
    assert row.tokens_per_s is not None
    assert row.notes == ()  # an estimate has no times that could settle
    assert [attempt.outcome for attempt in row.tries] == ["fits", "oom"]


def near(size: int, reserved: int, *, fits: bool = True) -> PredictedSize:
    """A size that is closer to the limit than the error of the prediction."""
    found = predicted(size, GIB, reserved, fits=fits)
    return replace(found, devices=tuple(replace(one, borderline=True) for one in found.devices))


def row_of(*sizes: PredictedSize, **values: Any) -> ProbeResult:
    asked = rung(effective_batch_size=16, **values)
    target = replace(TARGET, error=PeakError(0.02, GIB // 4, GIB // 2))
    found = attempts_of_prediction(
        asked.config, Prediction(sizes, 4, 32, ()), target, SIMULATED, SETTING
    )
    return conclude(
        asked, found, None, Context("cuda", usable_bytes=9 * GIB), request(asked), "predicted"
    )


@pytest.mark.parametrize("fits", [True, False])
def test_a_borderline_size_makes_a_borderline_row(fits: bool) -> None:
    row = row_of(near(1, 8 * GIB, fits=fits))
    assert (row.outcome, row.borderline, row.surely_fits) == (
        "fits" if fits else "oom",
        True,
        False,
    )
    assert row.notes == (
        "borderline: predictions like this are off by up to 2.0%, "
        "the CUDA context and libraries by up to 512 MiB",
    )
    assert row.tries[0].borderline


def test_with_zero_what_is_beyond_tensors_makes_it_borderline() -> None:
    row = row_of(near(1, 8 * GIB), sharding="zero2", world_size=2)
    assert "beyond tensors" in row.notes[-1]


def test_a_size_that_surely_fits_goes_before_a_borderline_one() -> None:
    row = row_of(predicted(1, GIB, 2 * GIB, fits=True), near(2, 8 * GIB))
    assert (row.micro_batch_size, row.borderline, row.max_micro_batch_size) == (1, False, 1)
    assert [one.borderline for one in row.tries] == [False, True]


def estimated(size: int, step_s: float) -> PredictedSize:
    times = replace(ESTIMATED, micro_step_s=step_s * size, optimizer_step_s=step_s * 16)
    found = predicted(size, GIB, size * GIB, fits=True)
    return replace(found, devices=tuple(replace(one, timing=times) for one in found.devices))


def test_the_smallest_size_within_five_percent_of_the_fastest_estimate_is_chosen() -> None:
    """An estimate is off by far more than the few per cent that filled the card."""
    sizes = [(1, 1.2), (2, 1.04), (4, 1.02), (8, 1.0)]
    row = row_of(*(estimated(size, step_s) for size, step_s in sizes))
    rates = {one.micro_batch_size: one.tokens_per_s or 0.0 for one in row.tries}
    assert rates[1] < 0.95 * rates[8] <= rates[2] < rates[8]
    assert (row.micro_batch_size, row.max_micro_batch_size) == (2, 8)


def test_what_generation_needs_decides_if_it_is_more_than_the_step():
    asked = rung(
        objective="grpo", vllm_gpu_memory_utilization=0.5, vllm_enable_sleep_mode=True
    ).config
    size = predicted(1, 3 * GIB, 3 * GIB, fits=True)
    parts = Breakdown(GIB, GIB // 2, GIB, GIB // 2, 0, 0)
    sizes = (replace(size, measurement=replace(size.measurement, breakdown=parts)),)
    setting = Setting("cuda", counts=ParameterCounts(1000, 900, 100, 0, 0))
    (attempt,) = attempts_of_prediction(
        asked, Prediction(sizes, 4, 32, ()), TARGET, SIMULATED, setting
    )
    measured = attempt.measurement
    assert measured is not None and measured.breakdown is not None
    resting = 2 * GIB  # weights and optimizer states
    assert [moment.name for moment in measured.moments] == ["step", "generate", "sync"]
    assert measured.peak_phase == "generate" and measured.phases["generate"]
    # vLLM's half of 10 GiB and half a GiB of context are outside the allocator.
    assert measured.peak_device_bytes == resting + 5 * GIB + GIB // 2
    assert sum(measured.breakdown.sizes().values()) == measured.peak_allocated_bytes
    tight = replace(TARGET, usable_bytes=6 * GIB)
    (attempt,) = attempts_of_prediction(
        asked, Prediction(sizes, 4, 32, ()), tight, SIMULATED, setting
    )
    assert attempt.outcome == "oom" and "short by" in (attempt.reason or "")
