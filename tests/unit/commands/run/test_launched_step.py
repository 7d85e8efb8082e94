"""The time of a step on the emulated card, and the names of its kernels."""

from __future__ import annotations

from collections import Counter

import pytest

from oomdoctor.analysis.simulator.launched import LaunchedStep, MicroStep
from oomdoctor.commands.run.launched_step import demangled, name_of_kernel, timed_step
from oomdoctor.records.job.costs import Calibration, Filter, OpCost
from oomdoctor.system.catalogue import find_gpu


@pytest.mark.parametrize(
    ("mangled", "name"),
    [
        ("_ZN2at6native12_GLOBAL__N_110cat_kernelIfEEvPT_i", "at::native::cat_kernel"),
        ("triton_poi_fused_add_0", "triton_poi_fused_add_0"),
    ],
)
def test_a_kernel_has_its_name_without_its_parameters(mangled: str, name: str) -> None:
    if mangled.startswith("_Z") and demangled(mangled) == mangled:
        pytest.skip("libstdc++ is not there to tell names")
    assert name_of_kernel(mangled) == name


def step_of(*costs: OpCost) -> LaunchedStep:
    return LaunchedStep(1, [MicroStep(list(costs))], [], [], Counter(), Counter(), Counter())


def test_what_a_probe_measured_corrects_the_time_of_a_step() -> None:
    card = find_gpu("A100-SXM4-80GB")
    step = step_of(OpCost("mm", "matmul", "bfloat16", 1e13, 1e6))
    usual, _ = timed_step(step, card)
    slower, _ = timed_step(step, card, Calibration(compute=2.0))
    assert usual is not None and slower is not None
    assert slower.step.seconds == pytest.approx(2 * usual.step.seconds, rel=1e-3)


def test_a_convolution_without_a_published_rate_is_named() -> None:
    slid = Filter(9, True, 1, 28, 784, channels_last=True)
    cost = OpCost("convolution", "conv", "float16", 1e9, 1e6, shape=(8, 784, 56, 504), filter=slid)
    timed, reason = timed_step(step_of(cost), find_gpu("RTX 3090"))
    assert timed is None
    assert reason is not None and "groups of 56 channels in channels-last layout" in reason
