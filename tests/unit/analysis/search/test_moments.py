"""A measured step, judged by all moments of its job."""

from __future__ import annotations

from dataclasses import replace

from analysis_make import GIB, measurement, rung

from oomdoctor.analysis.search.dominance import Setting
from oomdoctor.analysis.search.moments import Room, with_moments
from oomdoctor.records.job.measurement import Breakdown
from oomdoctor.records.job.model import ParameterCounts
from oomdoctor.records.job.result import Attempt

SETTING = Setting("cuda", counts=ParameterCounts(1000, 900, 100, 0, 0))
ROOM = Room(23 * GIB, 24 * GIB)
ASLEEP = {
    "objective": "grpo", "vllm_gpu_memory_utilization": 0.75, "vllm_enable_sleep_mode": True,
}  # fmt: skip


def tried(**values: object) -> Attempt:
    measured = measurement(peak_device_bytes=8 * GIB, overhead_bytes=GIB)
    parts = Breakdown(3 * GIB, GIB, 2 * GIB, GIB, 0, 0)
    measured = replace(measured, breakdown=parts)
    return Attempt(rung(**values).config, "fits", measured, None, None, None, 1.0)


def test_a_step_that_fits_is_no_job_that_fits():
    """24 GiB: 18 for vLLM, 5 of weights and states, 1 outside the allocator."""
    attempt = with_moments(tried(**ASLEEP), SETTING, ROOM)
    assert attempt.outcome == "oom"
    assert attempt.reason == "needs 24.0 GiB, short by 1.00 GiB"
    assert attempt.measurement is not None
    assert (
        "the step took 8.00 GiB; generation, which needs more, is computed"
        in attempt.measurement.notes
    )


def test_a_step_that_needs_the_most_keeps_its_peaks():
    step = tried(**{**ASLEEP, "vllm_gpu_memory_utilization": 0.05})
    attempt = with_moments(step, SETTING, ROOM)
    assert attempt.measurement is not None and step.measurement is not None
    assert len(attempt.measurement.moments) == 3
    assert replace(attempt.measurement, moments=()) == step.measurement


def test_a_step_beside_a_critic_is_judged_with_it():
    counts = ParameterCounts(GIB, GIB, 0, 0, 0)
    setting = Setting("cuda", counts=counts)
    step = tried(objective="grpo", critic="card")  # 2 bytes of weights, 4 of states
    attempt = with_moments(step, setting, ROOM)
    assert attempt.outcome == "fits" and attempt.measurement is not None
    assert attempt.measurement.peak_device_bytes == (8 + 6) * GIB
    assert attempt.measurement.breakdown == Breakdown(3 * GIB, GIB, 2 * GIB, GIB, 0, 6 * GIB)
    assert "6.00 GiB of other models, computed, are on the card" in attempt.measurement.notes
    small = with_moments(step, setting, Room(13 * GIB, 14 * GIB))
    assert (small.outcome, small.reason) == ("oom", "needs 14.0 GiB, short by 1.00 GiB")


def test_other_attempts_stay_as_they_are():
    step = tried()
    assert with_moments(step, SETTING, ROOM) == step
    failed = replace(step, outcome="failed", measurement=None)
    assert with_moments(failed, SETTING, ROOM) is failed
