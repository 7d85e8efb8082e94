"""The speed benchmark on few rows, so that it cannot rot; its whole figures come from itself."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from cases import speeds
from cases.case import LeftOut
from figures.speed_rest import with_rest
from peft.tuners import tuners_utils

from oomdoctor.records.job.measurement import Timing

METHODS = ("full", "lora", "qlora")
TIMING = Timing(1.0, 0.1, 0.5, 0.1, 1.5, 0, 0, "estimated")


def published(folder: Path, *names: str) -> Path:
    """A file of the published rows whose ids end so."""
    rows = [row for row in json.loads(speeds.FILE.read_text()) if row["id"].endswith(names)]
    path = folder / "rows.json"
    path.write_text(json.dumps(rows))
    return path


@pytest.mark.slow
def test_rungs_of_one_model_are_predicted_and_in_order(
    script: Callable[..., Any], tmp_path: Path
) -> None:
    written = tmp_path / "errors.json"
    options = ("--published", str(published(tmp_path, *(f"mistral7b-{m}-bs4" for m in METHODS))))
    ended = script("speed", *options, "--json", "--write", str(written))
    assert ended.returncode == 0, ended.stderr
    answer = json.loads(ended.stdout)
    assert [row["method"] for row in answer["rows"]] == list(METHODS)
    for row in answer["rows"]:
        assert abs(row["error"]) < 0.1
        assert row["adaptations"] == ["shifted logits", "whole recompute"]
    assert {order["pairs_apart"] for order in answer["orders"]} == {1.0}
    (kind,) = json.loads(written.read_text())
    assert (kind["compute_capability"], kind["slower"], kind["count"]) == ("8.0", "device", 3)


@pytest.mark.slow
@pytest.mark.skipif(
    not hasattr(tuners_utils, "cast_adapter_dtype"),
    reason="this peft has no cast_adapter_dtype, which the old code's adaptation replaces",
)
def test_old_code_of_another_kind_is_expressed(script: Callable[..., Any], tmp_path: Path) -> None:
    rows = published(tmp_path, "qwen-7b-lora-256", "qwen-7b-lora-8192")
    ended = script("speed", "--published", str(rows), "--json")
    assert ended.returncode == 0, ended.stderr
    short, long = json.loads(ended.stdout)["rows"]
    assert (short["slower"], long["slower"]) == ("host", "device")
    assert abs(long["error"]) < 0.1
    assert "Qwen 1" in long["adaptations"]


def test_no_row_is_told_by_its_exit_code(script: Callable[..., Any]) -> None:
    assert script("speed", "--only", "no such row").returncode == 4


def test_every_published_row_is_a_run_or_has_a_reason() -> None:
    rows = list(speeds.published_runs())
    assert len(rows) == len(json.loads(speeds.FILE.read_text()))
    assert all("ZeRO-3" in row.reason for row in rows if isinstance(row, LeftOut))
    assert not any(row.counts for row in rows if row.id.startswith("llamafactory"))


def test_a_timed_rung_of_our_own_is_a_run_and_its_fixture_a_survey(tmp_path: Path) -> None:
    plain = {
        "label": "full-bf16",
        "config": {"sequence_length": 2048},
        "outcome": "fits",
        "evidence": "measured",
        "micro_batch_size": 4,
        "peak_allocated_bytes": 1000,
        "peak_reserved_bytes": 2000,
        "tokens_per_s": 1234.5,
    }
    report = {
        "model": {"id": "HuggingFaceTB/SmolLM2-135M"},
        "machine": {"gpu_name": "NVIDIA H200"},
        "budget": {"usable_bytes": 1 << 30},
        "results": [plain, plain | {"label": "untimed", "tokens_per_s": None}],
    }
    folder = tmp_path / "nvidia-h200"
    folder.mkdir()
    (folder / "smollm2.json").write_text(json.dumps({"report": report}))
    (found,) = speeds.measured_runs(tmp_path)
    assert (found.id, found.tokens_per_s) == ("nvidia-h200/smollm2 full-bf16", 1234.5)
    assert (found.survey, found.counts) == ("nvidia-h200/smollm2", True)
    assert found.case.config.micro_batch_size == 4


def test_the_time_beside_the_operators_comes_from_other_models_only() -> None:
    rows = [row for row in speeds.published_runs() if isinstance(row, speeds.Run)]
    ids = ("fms-mistral7b-full-bs4", "fms-powerlm3b-full-bs4")
    first, second = (next(row for row in rows if row.id == name) for name in ids)
    tokens = 4 * 4096
    # A step of 2.0 s for 1.5 predicted, and one of 1.7 s.
    runs = (replace(first, tokens_per_s=tokens / 2.0), replace(second, tokens_per_s=tokens / 1.7))
    timed = [speeds.Speed(run, TIMING, "device") for run in runs]
    found = with_rest(timed)
    assert found is not None
    assert [speed.predicted for speed in found.speeds] == pytest.approx(
        [tokens / 1.7, tokens / 2.0]
    )
    assert (found.least_s, found.most_s) == pytest.approx((0.2, 0.5))
    assert with_rest(timed[:1]) is None
