"""Factors of measured operators, of what is like them, and of a CPU."""

from __future__ import annotations

from dataclasses import replace

import pytest
from calibration_make import ADD, ATTENTION, LAUNCH_S, PRODUCT, times, work_s

from oomdoctor.analysis.speed.calibrated import calibration_of, cpu_facts, host_operator_s, step_s
from oomdoctor.analysis.speed.calibration_summary import checked_steps, measured_terms
from oomdoctor.analysis.speed.hosts import eager_s
from oomdoctor.analysis.speed.kernel_factors import KernelFactors, factors_of
from oomdoctor.analysis.speed.limits import highest_share
from oomdoctor.analysis.speed.roofline import RAMP_S, estimate
from oomdoctor.records.job.costs import Calibration, Filter, KernelFactor, OpCost
from oomdoctor.records.job.device_times import MeasuredKernel
from oomdoctor.system.catalogue import find_gpu

A100 = find_gpu("A100-SXM4-80GB")
A100_40 = find_gpu("A100-SXM4-40GB")
L4 = find_gpu("NVIDIA L4")
assert A100 is not None and A100_40 is not None and L4 is not None
MEASURED = {"matmul": 1.5, "attention": 2.0, "elementwise": 0.9}


def test_each_term_has_the_factor_that_was_measured() -> None:
    factors = calibration_of(times(A100, MEASURED), A100)
    by_name = {each.cost.name: each.factor for each in factors.kernels}
    assert by_name["mm"] == pytest.approx(1.5)
    assert by_name["_scaled_dot_product_flash_attention"] == pytest.approx(2.0)
    assert by_name["add"] == pytest.approx(0.9)
    assert factors.ramp == pytest.approx(LAUNCH_S / RAMP_S)
    assert factors.host == pytest.approx(0.5)
    assert (factors.compute, factors.bandwidth, factors.launch) == (1.0, 1.0, 1.0)


def test_an_estimate_uses_each_factor_for_its_own_operators() -> None:
    factors = calibration_of(times(A100, MEASURED), A100)
    for cost, factor in ((PRODUCT, 1.5), (ATTENTION, 2.0), (ADD, 0.9)):
        estimated = estimate([(cost, 1)], A100, factors)
        assert estimated is not None
        assert estimated.device_s == pytest.approx(factor * work_s(cost, A100) + LAUNCH_S)
    many = estimate([(replace(ADD, bytes_moved=1.0), 1000)], A100, factors)
    assert many is not None and many.seconds == pytest.approx(1000 * eager_s(A100) / 2)


def test_no_factor_takes_a_product_beyond_the_card() -> None:
    assert A100.bf16_flops is not None
    estimated = estimate([(PRODUCT, 1)], A100, calibration_of(times(A100, {"matmul": 0.3}), A100))
    assert estimated is not None
    assert estimated.device_s - LAUNCH_S == pytest.approx(PRODUCT.flops / A100.bf16_flops / 0.95)


def test_a_relative_keeps_the_ratio_of_the_peaks() -> None:
    factors = calibration_of(times(A100, MEASURED), A100)
    here, there = (estimate([(ADD, 1000)], card, factors) for card in (A100, A100_40))
    assert here is not None and there is not None
    assert A100.bandwidth_bytes_per_s and A100_40.bandwidth_bytes_per_s
    ratio = A100.bandwidth_bytes_per_s / A100_40.bandwidth_bytes_per_s
    launches = 1000 * LAUNCH_S
    expected = (here.device_s - launches) * ratio
    assert there.device_s - launches == pytest.approx(expected, rel=1e-6)


def test_the_error_is_that_of_the_step_that_was_checked() -> None:
    taken = times(A100, MEASURED, off=1.25)
    factors = calibration_of(taken, A100)
    assert factors.error == pytest.approx(0.2)  # 1 / 1.25 - 1
    (step,) = checked_steps(taken, A100)
    assert step.estimated_s == pytest.approx(step.measured_s / 1.25)
    assert step.error == pytest.approx(-0.2)
    assert step.uncalibrated_s == step_s(taken.steps[0], A100, None)


def test_what_is_mostly_a_launch_is_no_factor() -> None:
    taken = times(A100, MEASURED)
    short = MeasuredKernel(replace(ADD, bytes_moved=10.0), 2 * LAUNCH_S, 0.02)
    more = replace(taken, kernels=(*taken.kernels, short))
    assert len(calibration_of(more, A100).kernels) == len(taken.kernels)


def test_sizes_between_measured_ones_have_factors_between_theirs() -> None:
    small, large = replace(ADD, bytes_moved=1e6), replace(ADD, bytes_moved=1e8)
    alone = KernelFactors([KernelFactor(small, 1.0), KernelFactor(large, 4.0)])
    assert alone.of(small) == pytest.approx(1.0)
    assert alone.of(replace(ADD, bytes_moved=1e7)) == pytest.approx(2.0)
    assert alone.of(replace(ADD, bytes_moved=1e12)) == pytest.approx(4.0, rel=0.5)


def test_factors_are_made_once_for_a_plan() -> None:
    kernels = (KernelFactor(ADD, 2.0),)
    assert factors_of(kernels) is factors_of(kernels)
    assert factors_of((KernelFactor(ADD, 3.0),)).of(ADD) == pytest.approx(3.0)
    assert factors_of(kernels).of(ADD) == pytest.approx(2.0)


def test_other_names_get_the_median_of_their_kind() -> None:
    kinds = [("add", 1.0), ("mul", 1.2), ("erf", 9.0)]
    alone = KernelFactors(KernelFactor(replace(ADD, name=name), each) for name, each in kinds)
    assert alone.of(replace(ADD, name="lerp_")) == pytest.approx(1.2)
    assert alone.of(replace(ADD, name="erf")) == pytest.approx(9.0)
    assert alone.of(replace(ADD, name="erf", dtype="float16")) == pytest.approx(9.0)
    assert alone.of(PRODUCT) == 1.0
    assert KernelFactors(()).of(ADD) == 1.0


def test_attention_has_a_factor_for_each_direction() -> None:
    back = replace(ATTENTION, name="_scaled_dot_product_flash_attention_backward")
    alone = KernelFactors([KernelFactor(ATTENTION, 1.1), KernelFactor(back, 1.7)])
    other = replace(back, name="_scaled_dot_product_cudnn_attention_backward")
    assert alone.of(other) == pytest.approx(1.7)


def test_a_cpu_is_as_fast_as_it_was_measured() -> None:
    assert L4 is not None
    products = [replace(PRODUCT, dtype=name) for name in ("float32", "bfloat16")]
    kernels = [MeasuredKernel(cost, 0.5, 0.0) for cost in (*products, ADD)]
    taken = replace(times(L4, {}), kernels=tuple(kernels), clock="wall")
    facts = cpu_facts("a CPU", taken)
    assert facts.fp32_flops == facts.bf16_flops == PRODUCT.flops / 0.5
    assert facts.bandwidth_bytes_per_s == ADD.bytes_moved / 0.5
    factors = calibration_of(taken, facts)
    estimated = estimate([(ADD, 1)], facts, factors)
    assert estimated is not None
    # It launches nothing: what the host takes for an operator is added.
    assert estimated.host_s == 0.0
    assert factors.ramp * RAMP_S <= host_operator_s(taken)
    assert checked_steps(taken, facts)[0].uncalibrated_s is None


def test_a_rate_above_the_peak_is_seen() -> None:
    assert L4 is not None and L4.bf16_flops is not None
    possible = MeasuredKernel(PRODUCT, PRODUCT.flops / L4.bf16_flops * 2, None)
    assert highest_share(possible, L4) == pytest.approx(0.5)
    assert highest_share(replace(possible, seconds=possible.seconds / 4), L4) == pytest.approx(2)
    assert highest_share(MeasuredKernel(ADD, 1e-9, None), L4) == 0.0


def test_terms_are_by_kind_and_type() -> None:
    products, attention, pointwise = measured_terms(times(A100, MEASURED), A100)
    assert [products.term, attention.term, pointwise.term] == ["products", "attention", "pointwise"]
    assert products.factor == pytest.approx(1.5)
    assert products.best_flops_per_s and products.best_bytes_per_s is None
    assert pointwise.best_bytes_per_s and pointwise.best_flops_per_s is None
    unreal = measured_terms(times(A100, MEASURED), None)
    assert {(each.best_flops_per_s, each.spread, each.factor) for each in unreal} == {
        (None, None, None)
    }


def test_without_measured_operators_nothing_changes() -> None:
    assert estimate([(PRODUCT, 3)], A100) == estimate([(PRODUCT, 3)], A100, Calibration())


def test_convolutions_have_the_factor_of_those_that_multiply_the_same_channels() -> None:
    slid = Filter(9, True, 1, 28, 784, channels_last=False)
    whole = OpCost(
        "convolution", "conv", "float16", 1e10, 1e6, shape=(1, 784, 256, 2304), filter=slid
    )
    single = replace(whole, shape=(256, 784, 1, 9))
    known = KernelFactors([KernelFactor(whole, 2.0), KernelFactor(single, 0.5)])
    assert known.of(replace(whole, shape=(1, 1568, 256, 2304))) == pytest.approx(2.0)
    assert known.of(replace(single, shape=(512, 784, 1, 9))) == pytest.approx(0.5)
    assert known.of(replace(whole, shape=(32, 784, 8, 72))) == 1.0
    assert known.of(replace(whole, name="convolution_backward")) == 1.0
