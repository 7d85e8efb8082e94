"""The tutorial, as a reader follows it: every command, in order, in the same folder."""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "tutorial.md").read_text(encoding="utf-8")
EXAMPLES = ROOT / "docs" / "examples"
COMMANDS = [
    line.removeprefix("$ ")
    for kind, block in re.findall(r"^```(\w*)\n(.*?)^```", PAGE, re.DOTALL | re.MULTILINE)
    for line in block.splitlines()
    if kind in ("", "console") and re.match(r"(\$ )?oomdoctor [a-z]", line)
]
# `diff` finds that longer rows are worse, which is what the page says.
CODES = {"oomdoctor diff": 3}


def follow(command: str, folder: Path, **environment: str) -> subprocess.CompletedProcess[str]:
    """Run a command of the page as in a copy of the repository."""
    return subprocess.run(
        [sys.executable, "-m", *shlex.split(command)],
        cwd=folder,
        env={**os.environ, "PYTHONPATH": str(ROOT), **environment},
        capture_output=True,
        text=True,
        timeout=250,
        check=False,
    )


def test_there_is_something_to_follow() -> None:
    assert len(COMMANDS) >= 10
    verbs = {command.split()[1] for command in COMMANDS}
    assert {"explain", "plan", "export", "run", "diff", "runs", "show"} <= verbs


@pytest.mark.slow
def test_every_command_works_in_order(tmp_path: Path) -> None:
    (tmp_path / "docs").mkdir()
    (tmp_path / "docs" / "examples").symlink_to(EXAMPLES)
    said = {}
    for command in COMMANDS:
        if not command.startswith("oomdoctor run "):
            done = follow(command, tmp_path, OMP_NUM_THREADS="1")
            assert done.returncode == CODES.get(command, 0), (command, done.stderr)
            said[command] = done.stdout
    explained = next(text for command, text in said.items() if " explain " in command)
    assert "Out of GPU memory in the forward pass" in explained and "47.4 GiB" in explained
    planned = next(text for command, text in said.items() if " plan " in command)
    # The settings of the next step; its rank is within the error of the estimate.
    assert re.search(r"^ *\d  full-bf16\+ckpt\+adamw8bit +2 x 8 ", planned, re.MULTILINE)
    assert "sequence_length 2048 -> 4096" in said["oomdoctor diff"].splitlines()[0]
    script = (tmp_path / "fits.py").read_text(encoding="utf-8")
    assert "MICRO_BATCH_SIZE = 2" in script and "adamw_bnb_8bit" in script
    assert (tmp_path / "report.html").read_text(encoding="utf-8").startswith("<!DOCTYPE html>")


def test_the_second_script_differs_by_the_lines_of_the_page() -> None:
    before = (EXAMPLES / "train.py").read_text(encoding="utf-8").splitlines()
    after = (EXAMPLES / "train_that_fits.py").read_text(encoding="utf-8").splitlines()
    shown = re.search(r"```diff\n(.*?)```", PAGE, re.DOTALL)
    assert shown is not None
    lines = shown[1].splitlines()
    assert [line[1:] for line in lines if line[0] == "-"] == [
        line for line in before[1:] if line not in after
    ]
    assert [line[1:] for line in lines if line[0] == "+"] == [
        line for line in after[1:] if line not in before
    ]
