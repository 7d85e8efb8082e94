"""Which recorded errors a prediction's uncertainty rests on, and what is said of thin evidence."""

from __future__ import annotations

from typing import Any

from oomdoctor.analysis.uncertainty import uncertainty_of
from oomdoctor.records.evidence import ErrorRecord


def record(**values: Any) -> ErrorRecord:
    plain: dict[str, Any] = {
        "origin": "published",
        "method": "lora",
        "metric": "allocated",
        "count": 6,
        "signed_median": -0.01,
        "absolute_median": 0.012,
        "p95": 0.041,
    }
    return ErrorRecord(**(plain | values))


def test_the_kind_itself_decides_where_it_has_enough_runs() -> None:
    wide = record(method="full", p95=0.2)
    found = uncertainty_of("lora", "allocated", [wide, record()])
    assert found.share == 0.041
    assert found.evidence == (
        "6 runs that others published (lora, allocated): 95 % within 4.1%, half within 1.2%"
    )


def test_runs_of_our_own_come_before_published_ones() -> None:
    ours = record(origin="measured", count=5, p95=0.008)
    found = uncertainty_of("lora", "allocated", [record(), ours])
    assert found.share == 0.008
    assert found.evidence.startswith("5 runs of our own")


def test_few_runs_of_our_own_do_not_hide_many_published_ones() -> None:
    ours = record(origin="measured", count=4, p95=0.008)
    assert uncertainty_of("lora", "allocated", [ours, record()]).share == 0.041


def test_thin_evidence_takes_the_widest_kind_of_the_same_peak_and_says_so() -> None:
    thin = record(count=1, p95=0.001)
    wide = record(method="full", p95=0.09)
    other = record(method="full", metric="device", p95=0.5)
    found = uncertainty_of("lora", "allocated", [thin, wide, other])
    assert found.share == 0.09
    assert found.evidence.startswith(
        "thin evidence: only 1 run was compared for lora, allocated; 6 runs that others published"
    )


def test_a_peak_that_was_never_compared_takes_the_widest_kind_of_all() -> None:
    found = uncertainty_of("lora", "device", [record(), record(method="full", p95=0.09)])
    assert found.share == 0.09
    assert found.evidence.startswith("thin evidence: no run was compared for lora, device; ")


def test_without_any_record_there_is_no_figure() -> None:
    found = uncertainty_of("lora", "allocated", [])
    assert found.share is None
    assert found.evidence == "no prediction was ever compared with a measurement"
