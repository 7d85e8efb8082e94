"""Trainings on several GPUs that others measured: how rows become rungs, and what was reached."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from figures.errors import figures_of
from old_code.engines import ENGINE_ADAPTATIONS
from published.code import NotExpressibleError
from published.many.code import check_many, engine_adaptations
from published.many.config import many_config
from published_many import FILE, MEDIAN, P95

ROOT = Path(__file__).parents[3]
STORED = json.loads((ROOT / "tests" / "data" / "emulated" / "published_many.json").read_text())
LEAST = 28
ROWS: dict[str, dict[str, Any]] = {row["id"]: row for row in json.loads(FILE.read_text())}


def test_every_row_is_predicted_or_named_with_a_reason() -> None:
    assert [row["id"] for row in STORED] == list(ROWS)
    for row in STORED:
        assert ("predicted_bytes" in row) != bool(row.get("left_out")), row["id"]


def test_what_was_measured_is_what_the_rows_say() -> None:
    for row in STORED:
        for key in ("measured_bytes", "metric", "world_size", "gpu"):
            assert row[key] == ROWS[row["id"]][key]


def test_predictions_are_as_near_as_claimed() -> None:
    errors = [_error(row) for row in STORED if "predicted_bytes" in row]
    assert len(errors) >= LEAST
    figures = figures_of(errors)
    assert figures.absolute_median <= MEDIAN
    assert figures.p95 <= P95


def test_rows_that_ran_with_their_own_libraries_are_equal_to_a_part_in_a_thousand() -> None:
    own = [row for row in STORED if row.get("torch") == "2.4.1"]
    assert len(own) >= 5
    exact = [row["id"] for row in own if abs(_error(row)) <= 0.001]
    assert len(exact) >= len(own) - 2


def test_a_row_says_how_its_model_is_split() -> None:
    full = many_config(ROWS["fms-mistral7b-full-2g-bs2"])
    assert (full.sharding, full.fsdp_version, full.world_size) == ("fsdp", 1, 2)
    assert full.accumulation_steps() == 1
    qlora = many_config(ROWS["fms-mistral7b-qlora-base-2g-bs2"])
    assert (qlora.quant_storage, qlora.kbit_prepare) == ("bfloat16", "none")
    zero = many_config(ROWS["stas-l31-8b-z3-h200-8K"])
    assert (zero.sharding, zero.offload, zero.loss) == ("zero3", "optimizer", "liger")
    accumulated = many_config(ROWS["litgpt-rt-phi15-none-mb1-2g"])
    assert accumulated.accumulation_steps() == 128


def test_what_no_rung_can_say_is_left_out() -> None:
    with pytest.raises(NotExpressibleError, match="context, tensor or pipeline parallel"):
        check_many(ROWS["torchtitan-l31-8b-8g-128k-cp4"])
    with pytest.raises(NotExpressibleError, match="torch_compile"):
        check_many(ROWS["torchtitan-l31-8b-128g-fsdp-compile"])


def test_each_difference_has_a_source() -> None:
    for row in ROWS.values():
        for own in (False, True):
            for name in engine_adaptations(row, own=own):
                assert ENGINE_ADAPTATIONS[name].source


def test_a_row_with_its_own_libraries_only_checkpoints_as_they_do() -> None:
    row = ROWS["fms-mistral7b-lora-2g-bs2"]
    assert list(engine_adaptations(row, own=True)) == ["reentrant checkpoints"]
    assert "shifted logits" in engine_adaptations(row, own=False)


def _error(row: dict[str, Any]) -> float:
    return float(row["predicted_bytes"] / row["measured_bytes"] - 1)
