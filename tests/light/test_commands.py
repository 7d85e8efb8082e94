"""The commands that work without torch, with typer and rich alone."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

pytestmark = pytest.mark.slow

OOM = (
    "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB. GPU 0 has a total "
    "capacity of 23.64 GiB of which 1.00 GiB is free. Of the allocated memory 20.00 GiB is "
    "allocated by PyTorch, and 1.00 GiB is reserved by PyTorch but unallocated.\n"
)
PLAN = Path(__file__).parents[2] / "docs" / "reports" / "plan-a100.json"


@pytest.mark.parametrize(
    ("arguments", "shown"),
    [
        ("--help", "oomdoctor explain trace.txt"),
        ("gpus h100", "NVIDIA H100"),
        ("models gpt2", "openai-community/gpt2"),
        ("recipes", "default"),
        ("recipes show qlora", "[[rung]]"),
        ("env", "OMP_NUM_THREADS"),
        ("show --help", "oomdoctor show"),
        ("watch --help", "oomdoctor watch latest"),
        ("snapshot --help", "--html"),
        ("runs", "nothing to list"),
        (f"diff {PLAN} {PLAN}", "Every number of 4 configurations is the same"),
    ],
)
def test_a_command_answers(light, arguments, shown):
    ended = light(*arguments.split())
    assert ended.returncode == 0, ended.stderr
    assert shown in ended.stdout


def test_explain_reads_a_log(light, tmp_path):
    log = tmp_path / "log.txt"
    log.write_text(OOM)
    page = light("explain", str(log))
    assert page.returncode == 0, page.stderr
    assert "2.00 GiB" in page.stdout
    document = json.loads(light("explain", str(log), "--json").stdout)
    assert document["exit_code"] == 0


def test_a_recipe_is_copied_and_checked(light, tmp_path):
    copy = str(tmp_path / "mine.toml")
    assert light("recipes", "copy", "default", copy).returncode == 0
    assert light("recipes", "check", copy).returncode == 0


def test_a_plan_has_lower_bounds_and_says_what_is_missing(light):
    page = light("plan", "gpt2", "--gpu", "T4")
    assert page.returncode == 5, page.stderr
    assert "lower bound 949 MiB" in page.stdout
    assert "No module named 'torch'" in page.stdout
    assert "-m pip install torch" in page.stdout
    assert "14 not simulated" in page.stdout
    shown = light("show")
    assert shown.returncode == 0
    assert "lower bound 949 MiB" in shown.stdout


def test_the_lower_bounds_as_json(light):
    ended = light("plan", "meta-llama/Llama-3.1-70B", "--gpu", "T4", "--json")
    document = json.loads(ended.stdout)
    assert (ended.returncode, document["exit_code"], document["status"]) == (5, 5, "partial")
    (fault,) = document["errors"]
    assert fault["code"] == "library_missing"
    assert all(row["missed_by_bytes"] > 0 for row in document["results"])


def test_a_probe_says_what_is_missing(light):
    ended = light("probe", "gpt2", "--recipe", "quick")
    assert ended.returncode == 5
    assert "error: a library is missing for " in ended.stderr


def test_a_file_is_exported(light, tmp_path):
    """Login nodes have no torch, and no PyYAML: JSON and scripts are read."""
    file = tmp_path / "train.json"
    file.write_text(
        '{"model_name_or_path": "gpt2", "per_device_train_batch_size": 2, "max_length": 256}'
    )
    script = light("export", "--from", f"trl:{file}", "--to", "pytorch")
    assert script.returncode == 0, script.stderr
    assert "SEQUENCE_LENGTH = 256" in script.stdout
    (tmp_path / "train.py").write_text(script.stdout)
    again = light("export", "--from", str(tmp_path / "train.py"), "--to", "trl")
    assert "SEQUENCE_LENGTH = 256" in again.stdout, again.stderr
