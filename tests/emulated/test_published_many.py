"""A published training on several GPUs, run again on the emulated GPU."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from published.many.running import Interpreters, Prediction, predict
from published_many import FILE

STORED = Path(__file__).parents[1] / "data" / "emulated" / "published_many.json"
ROW = "litgpt-rt-phi15-none-mb1-2g"
HOST_BYTES = 4 << 30


@pytest.mark.slow
def test_a_published_training_on_two_gpus_needs_what_the_table_says(
    cuda_python: Path, emulator_cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(emulator_cache))
    row = next(row for row in json.loads(FILE.read_text()) if row["id"] == ROW)
    stored = next(row for row in json.loads(STORED.read_text()) if row["id"] == ROW)
    found = predict(row, Interpreters(cuda_python, None), HOST_BYTES)
    assert isinstance(found, Prediction), found
    assert found.adaptations == tuple(stored["adaptations"])
    assert found.predicted_bytes == pytest.approx(stored["predicted_bytes"], rel=1e-3)
    assert abs(found.predicted_bytes / row["measured_bytes"] - 1) < 0.03
