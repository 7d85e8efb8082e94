"""The emulated A100 beside published measurements of real ones: what was reached, and is told."""

from __future__ import annotations

import json
from pathlib import Path

from emulated.rows import all_rows, why_not
from emulated_real import GOAL, table

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


def test_the_documentation_shows_them() -> None:
    assert table(READINGS) in (ROOT / "docs" / "emulation.md").read_text()
