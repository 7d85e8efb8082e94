"""The benchmarks in their smallest form, so that they cannot rot; their times prove nothing here.

What does not depend on the clock is asserted: tensor bytes against PyTorch's own allocator, the
count of tries, and that a machine without a GPU records nothing.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from tiny_configs import CONFIGS

ROOT = Path(__file__).parents[3]
SMALLEST = ["--device", "cpu", "--seq-len", "16", "--json"]
pytestmark = pytest.mark.slow


@pytest.fixture
def model(tmp_path: Path) -> str:
    """A folder with the config.json of a tiny Llama."""
    _, architecture, config = CONFIGS["dense"]
    (tmp_path / "config.json").write_text(json.dumps(config | {"architectures": [architecture]}))
    return str(tmp_path)


def run(script: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    """A script, with one thread for each process: the suite may run beside others."""
    return subprocess.run(
        [sys.executable, str(script), *arguments],
        capture_output=True,
        text=True,
        env=os.environ | {"PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"},
        check=False,
    )


def document(script: str, *arguments: str) -> dict[str, Any]:
    """What a benchmark prints with --json; 3 says that a goal was missed, which is no fault."""
    ended = run(ROOT / "scripts" / script, *SMALLEST, *arguments)
    assert ended.returncode in (0, 3), ended.stderr
    answer: dict[str, Any] = json.loads(ended.stdout)
    return answer


def test_a_timeline_opens() -> None:
    ended = run(ROOT / "scripts" / "benchmarks" / "timeline_opening.py", "--events", "9000")
    assert ended.returncode in (0, 3), ended.stderr
    assert " MB" in ended.stdout.splitlines()[-1]


def test_truth_agrees_on_bytes_with_the_trainer(model: str) -> None:
    answer = document(
        "evaluation/truth.py",
        *("--model", model, "--effective-batch", "4", "--micro-batch", "2"),
        *("--steps", "4", "--warmup", "1", "--once", "--rung", "weights_dtype=float32"),
    )
    (row,) = answer["rows"]
    assert row["fault"] is None
    assert abs(row["allocated"]) < 0.02
    assert len(row["ours"]) == 1
    assert row["theirs"]["tokens_per_s"] > 0
    assert answer["within"] == (answer["worst"] <= answer["goal"])


@pytest.mark.weekly
def test_survey_and_naive_way_find_the_same_size(model: str) -> None:
    answer = document(
        "benchmarks/survey_vs_naive.py",
        *("--model", model, "--effective-batch", "1", "--steps", "2"),
        *("--recipe", "none", "--rung", "method=lora,lora_rank=2"),
    )
    (row,) = answer["rows"]
    assert row["outcome"] == "fits"
    assert row["ours"]["micro_batch_size"] == row["naive"]["micro_batch_size"] == 1
    assert (answer["survey_worker_runs"], answer["naive_runs"]) == (2, 1)
    assert answer["ratio"] == pytest.approx(answer["naive_s"] / answer["survey_s"])


def test_rung_overhead_accounts_for_every_second(model: str) -> None:
    answer = document(
        "benchmarks/rung_overhead.py",
        *("--model", model, "--recipe", "none", "--rung", "weights_dtype=float32"),
        *("--timing-limit", "0.5", "--help-runs", "1"),
    )
    (row,) = answer["rows"]
    assert row["status"] == "measured"
    parts = [row[f"{name}_s"] for name in ("context", "build", "steps", "imports", "tool")]
    assert all(part >= 0 for part in parts), row
    assert row["steps_s"] > 0
    assert row["imports_s"] > 0
    assert sum(parts) == pytest.approx(row["wall_s"])
    assert answer["help_s"] > answer["bare_python_s"]


def test_without_a_gpu_nothing_is_recorded(tmp_path: Path) -> None:
    from oomdoctor.system.machine.nvml import list_gpus

    if list_gpus():
        pytest.skip("there is a GPU here")
    ended = run(ROOT / "scripts" / "record_measurements.py", "--output", str(tmp_path))
    assert ended.returncode == 5
    assert "nothing recorded: no GPU to run on" in ended.stderr
    assert not any(tmp_path.iterdir())


@pytest.mark.weekly
def test_plan_speed_has_ratios_within_one_run() -> None:
    ended = run(ROOT / "scripts" / "benchmarks" / "plan_speed.py", "--only", "rungs 2", "--json")
    assert ended.returncode == 0, ended.stderr
    base, fewer = json.loads(ended.stdout)["rows"]
    assert (base["name"], base["ratio"]) == ("base", 1.0)
    assert fewer["ratio"] == pytest.approx(fewer["wall_s"] / base["wall_s"])
    # All processes of a command: the one that prints holds no torch, those that simulate do.
    assert fewer["cpu_s"] > 1
    assert fewer["process_bytes"] > 100 << 20
    if sys.platform == "linux":
        assert fewer["tree_bytes"] > fewer["process_bytes"]


def test_start_up_times_every_command() -> None:
    ended = run(ROOT / "scripts" / "benchmarks" / "start_up.py", "--runs", "1")
    assert ended.returncode == 0, ended.stderr
    lines = ended.stdout.splitlines()
    assert [line.partition("  ")[0] for line in lines[1:]] == [
        "oomdoctor --help",
        "oomdoctor explain",
        "oomdoctor gpus 4090",
    ]
