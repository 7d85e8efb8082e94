"""The emulated A100 beside published measurements of real ones: what was reached, and is told."""

from __future__ import annotations

import json
from pathlib import Path

from emulated.rows import all_rows, why_not
from emulated_real import GOAL, device_table, table

ROOT = Path(__file__).parents[3]
READINGS = json.loads((ROOT / "tests" / "data" / "emulated" / "published.json").read_text())


def test_every_row_that_can_be_run_was_run() -> None:
    assert {r["id"] for r in READINGS} == {row["id"] for row in all_rows() if not why_not(row)}


def test_what_was_measured_is_what_the_rows_say() -> None:
    measured = {row["id"]: row["measured_bytes"] for row in all_rows()}
    assert all(r["measured_bytes"] == measured[r["id"]] for r in READINGS)


def test_peaks_are_equal_to_the_byte_where_no_value_decides() -> None:
    for r in READINGS:
        if "mixtral" in r["id"]:  # its routing is data
            assert abs(r["allocated_bytes"] / r["measured_bytes"] - 1) <= GOAL
        else:
            assert r["allocated_bytes"] == r["measured_bytes"], r["id"]


def test_reserved_memory_differs_by_a_constant_from_what_nvidia_smi_showed() -> None:
    """For a method, the context and what else torch does not count do not depend on the batch."""
    for method in ("-lora-", "mistral7b-qlora-"):
        own = [r for r in READINGS if method in r["id"]]
        assert len(own) >= 2
        rests = [r["measured_device_bytes"] - r["reserved_bytes"] for r in own]
        for r, rest in zip(own, rests, strict=True):
            assert abs(rest - max(rests)) < 2e-4 * r["measured_device_bytes"], r["id"]


def test_the_documentation_shows_them() -> None:
    page = (ROOT / "docs" / "emulation.md").read_text()
    assert table(READINGS) in page
    assert device_table(READINGS) in page
