"""The recorded errors that the package brings along."""

from __future__ import annotations

from oomdoctor.system.evidence import prediction_errors, speed_errors


def test_the_package_has_errors_of_every_method() -> None:
    records = prediction_errors()
    assert {record.method for record in records} == {"full", "lora", "qlora"}
    kinds = [(record.origin, record.method, record.metric) for record in records]
    assert len(kinds) == len(set(kinds))


def test_figures_are_shares_of_the_measured_bytes() -> None:
    for record in prediction_errors():
        assert record.count > 0
        assert 0 <= abs(record.signed_median) <= record.p95 < 1
        assert 0 <= record.absolute_median <= record.p95


def test_the_package_has_errors_of_speeds() -> None:
    records = {(r.compute_capability, r.slower): r for r in speed_errors()}
    assert records["8.0", "device"].count >= 20
    assert records["8.0", "host"].count >= 1
    assert len(records) == len(speed_errors())
    for record in speed_errors():
        assert 0 <= record.absolute_median <= record.p95 < 1
