"""Estimated steps of a calibrated CPU against measured ones: the path, not the times."""

from __future__ import annotations

import sys
from dataclasses import replace

import calibration
import pytest
from calibration_make import COSTS, times
from cases import calibrated
from cases.calibrated import Compared, Small, estimated_s

from oomdoctor.analysis.speed.calibrated import calibration_of, cpu_facts
from oomdoctor.records.job.device_times import DeviceTimes, MeasuredKernel
from oomdoctor.system.catalogue import find_gpu

L4 = find_gpu("NVIDIA L4")
assert L4 is not None
HEADS = {"num_attention_heads": 4, "num_key_value_heads": 2}
PLAIN = HEADS | {"vocab_size": 64, "hidden_size": 32, "intermediate_size": 64}


def cpu_times(scale: float = 1.0) -> DeviceTimes:
    """Times of a CPU that takes `scale` times as long, for products in float32 too."""
    assert L4 is not None
    costs = [replace(cost, dtype=name) for cost in COSTS for name in ("float32", "bfloat16")]
    kernels = tuple(MeasuredKernel(cost, 0.5 * scale, 0.0) for cost in costs)
    taken = times(L4, {})
    host = replace(taken.host_step, seconds=taken.host_step.seconds * scale)
    return replace(taken, kernels=kernels, launch_s=taken.launch_s * scale, host_step=host)


def test_a_step_is_estimated_with_what_the_cpu_took() -> None:
    llama = calibrated.MODELS[0]
    small = Small(replace(llama.spec, config=dict(llama.spec.config) | PLAIN), llama.config)
    seconds = []
    for scale in (1.0, 3.0):
        facts = cpu_facts("a CPU", cpu_times(scale))
        seconds.append(estimated_s(small, facts, calibration_of(cpu_times(scale), facts)))
    assert seconds[1] == pytest.approx(3 * seconds[0])


@pytest.mark.parametrize(("estimated", "code"), [(1.1, 0), (1.2, 1), (0.8, 1)])
def test_a_model_beyond_the_limit_fails(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], estimated: float, code: int
) -> None:
    rows = [Compared("llama", 1.0, 0.01, estimated)]
    monkeypatch.setattr(calibrated, "compared", lambda *_: rows)
    monkeypatch.setattr(sys, "argv", ["calibration.py"])
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    assert calibration.main() == code
    assert f"{estimated - 1:+.1%}" in capsys.readouterr().out
