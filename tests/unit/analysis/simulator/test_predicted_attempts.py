"""A simulated rung as attempts: which sizes, which peaks, and how near to the limit."""

from __future__ import annotations

from dataclasses import replace

import pytest
from analysis_make import GIB, measurement, request, rung, timing

from oomdoctor.analysis.search.ladder import Context
from oomdoctor.analysis.simulator.peak_uncertainty import PeakErrors
from oomdoctor.analysis.simulator.predicted_attempts import (
    attempts_of_prediction,
    sizes_to_predict,
    with_borderline_note,
)
from oomdoctor.analysis.verdict import conclude
from oomdoctor.records.config import TrainConfig
from oomdoctor.records.evidence import PeakErrorRecord
from oomdoctor.records.machine import ByteRange
from oomdoctor.records.result import Attempt
from oomdoctor.records.simulation import DevicePrediction, PredictedSize, Prediction, Target

CONTEXT = ByteRange(GIB // 4, GIB // 2, GIB, "")
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


def attempts(*sizes: PredictedSize):
    config = rung(effective_batch_size=16).config
    return attempts_of_prediction(config, Prediction(sizes, 4, 32, ()), TARGET, SIMULATED)


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
    row = conclude(asked, found, None, Context(9 * GIB, "cuda"), request(asked), "predicted")
    assert [attempt.peak_is_lower_bound for attempt in row.tries] == [False, True]


def test_the_time_of_the_simulation_counts_once():
    found = attempts(predicted(1, GIB, GIB, fits=True), predicted(2, GIB, GIB, fits=True))
    assert [attempt.elapsed_s for attempt in found] == [2.5, 0.0]


def test_a_row_of_predictions_is_like_a_measured_one():
    found = attempts(
        predicted(1, 2 * GIB, 2 * GIB, fits=True), predicted(2, 12 * GIB, None, fits=False)
    )
    asked = rung(effective_batch_size=16)
    context = Context(9 * GIB, "cuda")
    row = conclude(asked, found, None, context, request(asked), "predicted")
    assert (row.outcome, row.evidence, row.micro_batch_size) == ("fits", "predicted", 1)
    assert row.tokens_per_s is not None
    assert row.notes == ()  # an estimate has no times that could settle
    assert [attempt.outcome for attempt in row.tries] == ["fits", "oom"]


@pytest.mark.parametrize(
    ("peak", "outcome", "word"),
    [
        (5.0, "fits", None),
        (8.5, "fits", "borderline"),
        (9.1, "oom", "borderline"),
        (12.0, "oom", None),
    ],
)
def test_what_is_nearer_than_the_error_says_so(peak, outcome, word):
    asked = rung(effective_batch_size=16, micro_batch_size=1)
    found = attempts(predicted(1, 2 * GIB, 2 * GIB, fits=True))
    row = conclude(asked, found, None, Context(9 * GIB, "cuda"), request(asked), "predicted")
    row = replace(row, peak_device_bytes=round(peak * GIB), outcome=outcome)
    notes = with_borderline_note(row, CONTEXT, 9 * GIB, PeakErrors((), None, None)).notes
    assert [note.partition(":")[0] for note in notes] == ([word] if word else [])


def test_recorded_errors_say_how_exact_a_prediction_is():
    asked = rung(effective_batch_size=16, micro_batch_size=1)
    found = attempts(predicted(1, 2 * GIB, 2 * GIB, fits=True))
    row = conclude(asked, found, None, Context(9 * GIB, "cuda"), request(asked), "predicted")
    row = replace(row, peak_device_bytes=8 * GIB)
    off = PeakErrorRecord(
        "emulated",
        "reserved",
        "full",
        None,
        None,
        40,
        signed_median=0.0,
        absolute_median=0.0,
        p95=0.15,
    )

    def notes(p95: float) -> tuple[str, ...]:
        errors = PeakErrors((replace(off, p95=p95),), "8.0", "2.12.1")
        return with_borderline_note(row, CONTEXT, 9 * GIB, errors).notes

    assert notes(0.01) == ()
    assert notes(0.15) == ("borderline: predictions like this are off by up to 15.0%",)


@pytest.mark.parametrize(("peak", "word"), [(6.5, None), (7.8, "borderline")])
def test_with_zero_there_is_less_room_than_tensors_say(peak, word):
    asked = rung(effective_batch_size=16, micro_batch_size=1, sharding="zero2", world_size=2)
    found = attempts(predicted(1, 2 * GIB, None, fits=True))
    row = conclude(asked, found, None, Context(9 * GIB, "cuda"), request(asked), "predicted")
    row = replace(row, peak_device_bytes=round(peak * GIB))
    notes = with_borderline_note(row, CONTEXT, 9 * GIB, PeakErrors((), None, None)).notes
    assert [note.partition(":")[0] for note in notes] == ([word] if word else [])
    assert all("beyond tensors" in note for note in notes)


def test_what_vllm_takes_is_as_exact_as_its_share():
    asked = rung(
        effective_batch_size=16,
        micro_batch_size=1,
        objective="grpo",
        vllm_gpu_memory_utilization=0.5,
    )
    found = Prediction((predicted(1, 2 * GIB, 2 * GIB, fits=True),), 2, 2, ())
    target = TARGET.beside_vllm(asked.config)
    tries = attempts_of_prediction(asked.config, found, target, SIMULATED)
    row = conclude(asked, tries, None, Context(9 * GIB, "cuda"), request(asked), "predicted")
    assert row.peak_device_bytes == (2 + 5) * GIB + TARGET.overhead_bytes
    row = replace(row, peak_device_bytes=round(8.4 * GIB))
    none = PeakErrors((), None, None)
    assert with_borderline_note(row, CONTEXT, 9 * GIB, none).notes == row.notes
    near = replace(row, peak_device_bytes=round(8.6 * GIB))
    assert with_borderline_note(near, CONTEXT, 9 * GIB, none).notes != row.notes
