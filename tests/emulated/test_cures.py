"""Broken trainings that `run --cure` cures, each with a proof."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
from weekly_rows import weekly

ROOT = Path(__file__).parents[2]
sys.path.insert(0, str(ROOT / "scripts" / "evaluation"))

from cures import cure, result_of, rows  # noqa: E402

_ROWS = {row["name"]: row for row in rows()}


@pytest.mark.timeout(1500)
@pytest.mark.parametrize(
    "name",
    [
        "plain_loop",
        "kept_losses",
        weekly("trainer_batch"),
        weekly("sft_lora"),
        weekly("mlm_evaluation"),
        weekly("sft_small_card"),
        weekly("dpo_reference"),
        weekly("seq2seq_evaluation"),
    ],
)
def test_a_broken_training_is_cured(cuda_python: Path, emulator_cache: Path, name: str) -> None:
    report = cure(_ROWS[name], cuda_python)
    result = result_of(report)
    assert (report["status"], report["exit_code"]) == ("no", 3)
    assert result["proven"] and result["in_a_file"], result
    assert result["peak_bytes"] <= report["device"]["total_bytes"] < result["before_bytes"]
    assert report["applied"]["proof"]["versions"]["torch"]
