"""The recorded errors that the package brings along."""

from __future__ import annotations

from oomdoctor.system.catalogue import peak_errors, speed_errors


def test_the_package_has_errors_of_every_method() -> None:
    predictions = [r for r in peak_errors() if r.reference == "emulated"]
    assert {record.method for record in predictions} == {"full", "lora", "qlora", None}
    kinds = [(r.method, r.metric, r.compute_capability, r.torch) for r in predictions]
    assert len(kinds) == len(set(kinds))
    assert any(record.reference == "published" for record in peak_errors())


def test_figures_are_shares_of_the_bytes_they_were_compared_with() -> None:
    for record in peak_errors():
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
