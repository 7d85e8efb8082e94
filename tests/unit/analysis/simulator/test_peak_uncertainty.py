"""The recorded errors behind the uncertainty of a peak: which kind counts, and what it says."""

from __future__ import annotations

from typing import Any

import pytest

from oomdoctor.analysis.simulator.peak_uncertainty import PeakErrors
from oomdoctor.records.evidence import PeakErrorRecord


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
    found = PeakErrors(ALL, capability, torch).of("lora", "reserved")
    assert found.share == pytest.approx(share + 0.002)


def test_a_kind_with_few_rungs_does_not_decide() -> None:
    few = record(torch="2.12", compute_capability="8.0", count=4, p95=0.5)
    assert PeakErrors((few, RELEASE), "8.0", "2.12.1").of("lora", "reserved").share == 0.02


def test_of_a_release_all_methods_tell_more_than_the_method_of_all_releases() -> None:
    release = record(method=None, torch="2.15", p95=0.1)
    assert PeakErrors((*ALL, release), "8.0", "2.15.0").of("lora", "reserved").share == (
        pytest.approx(0.1 + 0.002)
    )


def test_a_kind_that_was_never_compared_takes_the_widest() -> None:
    assert PeakErrors((OTHER, record()), "8.0", "2.12").of("full", "reserved").share == 0.05


def test_the_sentence_names_both_comparisons() -> None:
    found = PeakErrors(ALL, "8.0", "2.12.1").of("lora", "reserved")
    assert found.evidence == (
        "95% of 9 rungs (lora, compute capability 8.0, torch 2.12) were within 3.00% "
        "of the reserved peak on the emulated GPU; "
        "the emulated GPU was within 0.20% of 10 published runs"
    )


def test_without_records_there_is_no_figure() -> None:
    found = PeakErrors((REAL,), "8.0", "2.12.1").of("lora", "reserved")
    assert found.share is None
    assert found.evidence == "no prediction has been compared yet"
    assert PeakErrors((CARD,), "8.0", "2.12").of("lora", "reserved").share == 0.03
