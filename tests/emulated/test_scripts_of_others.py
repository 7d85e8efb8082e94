"""Five scripts that nobody here wrote need what was recorded; the others run once a week.

Those of the workflow need packages that are not in the environment of these tests.
"""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
SCRIPT = ROOT / "scripts" / "evaluation" / "third_party.py"
RECORDED = ROOT / "tests" / "data" / "emulated" / "third_party.json"


@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.parametrize(
    "name",
    ["trl-sft", "trl-dpo", "accelerate-collectives", "accelerate-sync", "accelerate-peak-memory"],
)
def test_peaks_are_those_that_were_recorded(
    name: str, cuda_python: Path, emulator_cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(emulator_cache))
    words = ["--python", cuda_python, "--check", RECORDED, "--only", name]
    ended = subprocess.run(
        [sys.executable, SCRIPT, *words], capture_output=True, text=True, check=False
    )
    assert ended.returncode == 0, ended.stdout + ended.stderr
    assert name in {reading["name"] for reading in json.loads(RECORDED.read_text())}
