"""RL jobs as `plan` sees them, and as their programs ran on the emulated GPU."""

from __future__ import annotations

import json
from pathlib import Path

from rollouts import RECORDED, rollouts_table

ROOT = Path(__file__).parents[3]
COMPARED = json.loads((ROOT / "tests" / "data" / "emulated" / "rollouts.json").read_text())
READINGS = {r["name"]: r for r in json.loads(RECORDED.read_text()) if "engine" in r}


def test_every_script_with_an_engine_is_compared_as_recorded() -> None:
    assert [row["name"] for row in COMPARED] == list(READINGS)
    for row in COMPARED:
        at = {noted["moment"]: noted["device_bytes"] for noted in READINGS[row["name"]]["engine"]}
        assert row["moments"]["generation"][0] == at["generate"]
        assert row["moments"]["new weights"][0] == at["sync"]


def test_all_moments_are_within_five_percent() -> None:
    for row in COMPARED:
        for moment, (recorded, planned) in row["moments"].items():
            assert abs(planned / recorded - 1) < 0.05, (row["name"], moment)


def test_the_documentation_shows_them() -> None:
    assert rollouts_table(COMPARED) in (ROOT / "docs" / "emulation.md").read_text()
