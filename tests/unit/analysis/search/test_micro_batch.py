"""The micro-batch search, mostly against devices that do not exist but obey the rules."""

from __future__ import annotations

import pytest
from analysis_make import fit, ran_out, timing
from fake_device import DEVICES, FakeDevice, largest_fit, survey, true_largest
from hypothesis import assume, given
from hypothesis import strategies as st

from oomdoctor.analysis.search.micro_batch import Sample, divisors, next_size, sample_of, untried
from oomdoctor.records.configuration.config import TrainConfig


@given(DEVICES, st.integers(1, 2048))
def test_it_ends_within_six_tries_and_reports_only_what_ran(device, effective):
    tried = survey(device, effective)
    assert tried
    best = largest_fit(tried)
    assert best == 0 or device.peak(best) <= device.usable
    if best == 0:
        assert [s.micro_batch_size for s in tried] == [1]


@given(DEVICES, st.integers(1, 2048))
def test_up_to_ten_sizes_the_largest_that_fits_is_found(device, effective):
    assume(len(divisors(effective)) <= 10)
    assert largest_fit(survey(device, effective)) == true_largest(device, effective)


@given(st.integers(1, 60_000), st.integers(0, 20_000), st.integers(1, 20_000), st.integers(1, 5040))
def test_on_a_straight_line_the_largest_is_found_for_any_effective_batch(
    usable, fixed, each, effective
):
    device = FakeDevice(usable, ((fixed, each),))
    assert largest_fit(survey(device, effective)) == true_largest(device, effective)


@given(DEVICES, st.integers(1, 5040))
def test_a_larger_size_that_fits_is_never_hidden(device, effective):
    tried = survey(device, effective)
    best, truth = largest_fit(tried), true_largest(device, effective)
    assert best == truth or truth in untried(effective, tried, device.usable)


def tries(device: FakeDevice, effective: int) -> list[int]:
    return [s.micro_batch_size for s in survey(device, effective)]


def test_two_sizes_and_a_jump_to_the_prediction():
    # 10 + 2m: 16 needs 42, 32 needs 74; 32 is far above, so 16 is the edge and is not doubted.
    assert tries(FakeDevice(50, ((10, 2),)), 64) == [1, 2, 16]


def test_a_size_within_the_margin_is_tried():
    # 32 is predicted at 74,000: above 72,500, but not by 3 %.
    device = FakeDevice(72_500, ((10_000, 2_000),))
    assert tries(device, 64) == [1, 2, 16, 32]


def test_a_promise_that_fails_is_halved():
    # The second line starts above 5: the first two sizes know nothing of it.
    device = FakeDevice(1000, ((300, 1), (0, 60)))
    assert tries(device, 64)[:4] == [1, 2, 64, 16]
    assert largest_fit(survey(device, 64)) == 16


def test_the_prediction_follows_the_two_largest_sizes():
    # The first two promise 250 for 16, the last two 787.
    known = (Sample(1, "fits", 100), Sample(2, "fits", 110), Sample(8, "fits", 400))
    assert next_size(16, known, 700) is None
    assert next_size(16, known, 790).micro_batch_size == 16


def test_the_largest_fits_at_once():
    assert tries(FakeDevice(1000, ((1, 1),)), 16) == [1, 2, 16]


def test_the_fastest_is_looked_for_beside_a_large_and_slow_size():
    tried = survey(FakeDevice(1000, ((1, 1),), half=1.0, drag=20), 64)
    sizes = [s.micro_batch_size for s in tried]
    assert sizes[:3] == [1, 2, 64]
    fastest = max(tried, key=lambda s: s.tokens_per_s or 0)
    truth = max((FakeDevice(1000, ((1, 1),), 1.0, 20).run(d) for d in divisors(64)),
                key=lambda s: s.tokens_per_s or 0)  # fmt: skip
    assert fastest.micro_batch_size == truth.micro_batch_size


def test_the_whole_batch_in_one_step_holds_no_gradients_beside_activations():
    # On the line 8 needs 1050 and 16 needs 1450, but alone they hold 600 bytes less.
    steep = (Sample(1, "fits", 700, gradient_bytes=600), Sample(4, "fits", 850, gradient_bytes=600))
    assert next_size(8, steep, 860).micro_batch_size == 8
    assert next_size(16, steep, 860).micro_batch_size == 16
    without = (Sample(1, "fits", 700), Sample(4, "fits", 850))
    assert next_size(8, without, 860) is None


def test_a_fixed_size_is_tried_once():
    assert next_size(16, (), 100, fixed=4).micro_batch_size == 4
    assert next_size(16, (Sample(4, "fits", 10),), 100, fixed=4) is None


@pytest.mark.parametrize(
    "outcome", ["crashed", "failed", "timed_out", "unsupported", "host_oom", "skipped"]
)
def test_any_other_end_ends_the_search(outcome):
    assert next_size(16, (Sample(1, outcome),), 100) is None
    assert next_size(16, (Sample(1, "fits", 10, 5.0), Sample(2, outcome)), 100) is None


def test_peaks_that_are_not_known_are_not_guessed():
    known = (Sample(1, "fits"), Sample(2, "fits"))
    assert next_size(16, known, 100).micro_batch_size == 4


def test_divisors():
    assert divisors(1) == (1,)
    assert divisors(36) == (1, 2, 3, 4, 6, 9, 12, 18, 36)


def test_a_sample_of_an_attempt():
    config = TrainConfig(effective_batch_size=16, sequence_length=100)
    sample = sample_of(fit(config, 4, 12_345, times=timing(0.5, 0.0), trainable_parameters=10))
    assert sample == Sample(4, "fits", 12_345, pytest.approx(800.0), 20)
    lora = TrainConfig(method="lora")
    assert sample_of(fit(lora, 1, trainable_parameters=10)).gradient_bytes == 40
    assert sample_of(ran_out(config, 8)) == Sample(8, "oom")
