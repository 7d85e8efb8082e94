"""The errors that the package brings along are those of the stored comparisons."""

from __future__ import annotations

import pytest
from peak_errors import records, stored

from oomdoctor.records.codec import to_json
from oomdoctor.system.catalogue import peak_errors

RENEW = "python scripts/evaluation/peak_errors.py --write oomdoctor/data/peak_errors.json"


def test_the_package_has_what_the_stored_comparisons_come_to() -> None:
    real = [*stored("published.json"), *stored("benchmark.json")]
    found = records(stored("differences.json"), real)
    assert found == [to_json(record) for record in peak_errors()], f"renew it: {RENEW}"


def test_each_rung_counts_for_every_kind_that_it_is_of() -> None:
    rung = {
        "card": "T4",
        "model": "any",
        "settings": "method=lora,sequence_length=8",
        "torch": "2.12.1",
        "emulated": {"allocated": 100, "reserved": 200},
        "simulated": {"allocated": 101, "reserved": 190},
    }
    real = {"allocated_bytes": 98, "difference_bytes": -2}
    older = rung | {"torch": "2.6.0"}
    found = records([rung, older], [real])
    reserved = [r for r in found if r["metric"] == "reserved"]
    kinds = {(r["method"], r["compute_capability"], r["torch"]): r["count"] for r in reserved}
    assert kinds == {
        ("lora", "7.5", "2.12"): 1,
        ("lora", "7.5", "2.6"): 1,
        ("lora", None, "2.12"): 1,
        ("lora", None, "2.6"): 1,
        (None, None, "2.12"): 1,
        (None, None, "2.6"): 1,
        ("lora", None, None): 2,
    }
    assert {r["p95"] for r in reserved} == {0.05}
    assert found[-1]["reference"] == "published"
    assert found[-1]["signed_median"] == pytest.approx(-0.02)
