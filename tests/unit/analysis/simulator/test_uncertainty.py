"""The recorded errors behind the uncertainty of a time, and what little evidence adds."""

from __future__ import annotations

import math
from typing import Any

import pytest

from oomdoctor.analysis.simulator.timing import time_uncertainty
from oomdoctor.records.job.costs import Calibration, EstimatedTime
from oomdoctor.records.job.machine import GpuFacts
from oomdoctor.records.job.simulation import SpeedErrorRecord
from oomdoctor.system.catalogue import find_gpu


def speed_record(**values: Any) -> SpeedErrorRecord:
    plain: dict[str, Any] = {
        "origin": "published",
        "compute_capability": "8.0",
        "slower": "device",
        "count": 27,
        "signed_median": 0.05,
        "absolute_median": 0.06,
        "p95": 0.17,
    }
    return SpeedErrorRecord(**(plain | values))


def estimated(*, host_s: float = 0.1) -> EstimatedTime:
    """One second of products, beside a host that takes `host_s`."""
    shares = {"compute": 1.0, "bandwidth": 0.0, "launch": 0.0}
    if host_s > 1.0:
        shares = {"compute": 0.0, "bandwidth": 0.0, "launch": 1.0}
    return EstimatedTime(max(1.0, host_s), 1.0, host_s, shares, shares)  # type: ignore[arg-type]


def card(name: str) -> GpuFacts:
    found = find_gpu(name)
    assert found is not None
    return found


A100 = card("A100-SXM4-80GB")


def test_a_time_is_as_uncertain_as_recorded_on_its_architecture() -> None:
    slow_host = speed_record(slower="host", p95=0.4)
    other = speed_record(compute_capability="9.0", p95=0.9)
    found = time_uncertainty(estimated(), A100, [slow_host, other, speed_record(p95=0.35)])
    assert found == 0.35


def test_a_few_published_runs_do_not_make_a_time_more_certain_than_its_kernels() -> None:
    assert time_uncertainty(estimated(), A100, [speed_record(p95=0.17)]) == 0.25


def test_a_time_that_the_host_decides_has_errors_of_its_own_and_hosts_differ() -> None:
    slow_host = speed_record(slower="host", p95=0.4)
    found = time_uncertainty(estimated(host_s=2.0), A100, [speed_record(), slow_host])
    assert found == pytest.approx(math.hypot(0.75, 0.4))


def test_measured_speeds_come_before_published_ones() -> None:
    ours = speed_record(origin="measured", count=5, p95=0.05)
    assert time_uncertainty(estimated(), A100, [speed_record(), ours]) == 0.05


def test_another_architecture_is_less_certain() -> None:
    known = [speed_record()]
    measured = time_uncertainty(estimated(), card("H100 SXM"), known)
    taken_over = time_uncertainty(estimated(), card("RTX 5090"), known)
    assert measured == pytest.approx(math.hypot(0.25, 0.17))
    assert taken_over == pytest.approx(math.hypot(0.375, 0.17))


def test_another_architecture_takes_the_errors_of_what_waits_for_the_same() -> None:
    known = [speed_record(p95=0.9), speed_record(slower="host", p95=0.4)]
    for name in ("H100 SXM", "RTX 5090"):
        found = time_uncertainty(estimated(host_s=2.0), card(name), known)
        assert found == pytest.approx(math.hypot(0.75, 0.4))


def test_few_recorded_runs_of_an_architecture_are_thin_evidence() -> None:
    few = speed_record(compute_capability="9.0", count=4, p95=0.01)
    found = time_uncertainty(estimated(), card("H100 SXM"), [few, speed_record()])
    assert found == pytest.approx(math.hypot(0.25, 0.17))


def test_without_records_kernel_speeds_alone_tell() -> None:
    assert time_uncertainty(estimated(), A100, []) == 0.25
    assert time_uncertainty(estimated(host_s=2.0), A100, []) == 0.75


def test_checked_steps_of_a_calibrated_card_narrow_the_interval() -> None:
    usual = time_uncertainty(estimated(), A100, [speed_record(p95=0.35)])
    assert usual == 0.35

    def calibrated(error: float | None) -> float:
        factors = Calibration(error=error)
        return time_uncertainty(estimated(), A100, [speed_record(p95=0.35)], factors)

    assert calibrated(None) == usual  # a relative of the card
    assert calibrated(0.1) == 0.2
    assert calibrated(0.01) == 0.15
    assert calibrated(0.5) == usual
