"""The recorded errors behind the uncertainty of a peak: which kind counts."""

from __future__ import annotations

from typing import Any

import pytest

from oomdoctor.analysis.fit import PeakErrors
from oomdoctor.records.job.simulation import PeakErrorRecord


def record(**values: Any) -> PeakErrorRecord:
    plain: dict[str, Any] = {
        "reference": "emulated",
        "metric": "reserved",
        "method": "lora",
        "compute_capability": None,
        "torch": None,
        "count": 26,
        "signed_median": 0.0,
        "absolute_median": 0.001,
        "p95": 0.01,
    }
    return PeakErrorRecord(**(plain | values))


REAL = record(reference="published", metric="allocated", method=None, count=10, p95=0.002)
RELEASE = record(torch="2.12", p95=0.02)
CARD = record(torch="2.12", compute_capability="8.0", count=9, p95=0.03)
OTHER = record(method="qlora", p95=0.05)
ALL = (OTHER, CARD, RELEASE, record(), REAL)


@pytest.mark.parametrize(
    ("capability", "torch", "share"),
    [
        ("8.0", "2.12.1+cu130", 0.03),
        ("9.0", "2.12.0", 0.02),
        (None, "2.12.1", 0.02),
        ("8.0", "2.13.0+cpu", 0.01),
        ("8.0", None, 0.01),
    ],
)
def test_the_most_special_kind_decides(
    capability: str | None, torch: str | None, share: float
) -> None:
    found = PeakErrors(ALL, capability, torch).share("lora", "reserved")
    assert found == pytest.approx(share + 0.002)


def test_a_kind_with_few_rungs_does_not_decide() -> None:
    few = record(torch="2.12", compute_capability="8.0", count=4, p95=0.5)
    assert PeakErrors((few, RELEASE), "8.0", "2.12.1").share("lora", "reserved") == 0.02


def test_of_a_release_all_methods_tell_more_than_the_method_of_all_releases() -> None:
    release = record(method=None, torch="2.15", p95=0.1)
    assert PeakErrors((*ALL, release), "8.0", "2.15.0").share("lora", "reserved") == (
        pytest.approx(0.1 + 0.002)
    )


def test_a_kind_that_was_never_compared_takes_the_widest() -> None:
    assert PeakErrors((OTHER, record()), "8.0", "2.12").share("full", "reserved") == 0.05


def test_without_published_runs_only_the_first_comparison_counts() -> None:
    assert PeakErrors((CARD,), "8.0", "2.12").share("lora", "reserved") == 0.03


def test_without_records_there_is_no_figure() -> None:
    assert PeakErrors((REAL,), "8.0", "2.12.1").share("lora", "reserved") is None
