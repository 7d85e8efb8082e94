"""The search that starts from a prediction: as right as the blind one, in fewer runs."""

from __future__ import annotations

from fake_device import DEVICES, FakeDevice, largest_fit, survey, true_largest
from hypothesis import given
from hypothesis import strategies as st

from oomdoctor.analysis.search.from_prediction import RungPrediction, next_predicted, out_of_reach
from oomdoctor.analysis.search.micro_batch import MAX_TRIES, Sample, divisors


def predicted(
    device: FakeDevice, effective: int, error: float = 1.0, *, rates: bool = True
) -> tuple[Sample, ...]:
    sizes = divisors(effective)
    prediction = RungPrediction(
        {size: round(device.peak(size) * error) for size in sizes},
        {size: 1000 * size / (size + device.half) for size in sizes} if rates else {},
    )
    tried: tuple[Sample, ...] = ()
    while (step := next_predicted(effective, tried, device.usable, prediction)) is not None:
        assert step.micro_batch_size not in {s.micro_batch_size for s in tried}
        assert step.why
        tried += (device.run(step.micro_batch_size),)
        assert len(tried) <= MAX_TRIES
    return tried


@given(DEVICES, st.sampled_from([1, 2, 4, 8, 16, 12, 32]))
def test_an_exact_prediction_finds_the_largest_at_once(device, effective):
    tried = predicted(device, effective)
    assert largest_fit(tried) == true_largest(device, effective)
    if true_largest(device, effective):
        assert tried[0].micro_batch_size == true_largest(device, effective)


@given(DEVICES, st.sampled_from([1, 2, 4, 8, 16]), st.floats(0.7, 1.3))
def test_a_prediction_that_is_wrong_by_a_factor_is_corrected(device, effective, error):
    assert largest_fit(predicted(device, effective, error)) == true_largest(device, effective)


@given(DEVICES, st.sampled_from([8, 16]))
def test_it_needs_no_more_runs_than_the_blind_search(device, effective):
    assert len(predicted(device, effective)) <= len(survey(device, effective)) + 1


def test_a_typical_rung_takes_one_run_instead_of_four():
    device = FakeDevice(usable=1000, lines=((200, 100),), half=8.0)
    assert [s.micro_batch_size for s in predicted(device, 16)] == [8]
    assert len(survey(device, 16)) == 3


def test_a_smaller_size_is_tried_where_the_speeds_are_close():
    device = FakeDevice(usable=1000, lines=((200, 100),), half=0.1)
    assert [s.micro_batch_size for s in predicted(device, 16)] == [8, 4]


def test_without_predicted_speeds_two_sizes_are_measured():
    device = FakeDevice(usable=1000, lines=((200, 100),), half=8.0)
    assert len(predicted(device, 16, rates=False)) == 2


def test_without_timed_steps_the_largest_ends_the_search():
    device = FakeDevice(usable=1000, lines=((200, 100),), half=0.1)
    prediction = RungPrediction({size: device.peak(size) for size in divisors(16)})
    ran = (device.run(8),)
    assert next_predicted(16, ran, device.usable, prediction) is not None
    assert next_predicted(16, ran, device.usable, prediction, timed=False) is None


def test_other_ends_than_out_of_memory_end_the_search():
    known = (Sample(4, "crashed"),)
    assert next_predicted(16, known, 100, RungPrediction({1: 10, 4: 20})) is None


def test_only_what_is_far_above_the_budget_is_given_up_unmeasured():
    assert out_of_reach(RungPrediction({1: 1050, 2: 2000}), 1000) is None
    assert out_of_reach(RungPrediction({1: 1200, 2: 2000}), 1000) == 200
    assert out_of_reach(RungPrediction({}), 1000) is None
