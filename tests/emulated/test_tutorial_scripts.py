"""The two scripts of the tutorial on the card that it is about."""

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
COMMAND = re.search(r"^\$ (oomdoctor run .*)$", PAGE, re.MULTILINE)


@pytest.mark.emulated
@pytest.mark.slow
@pytest.mark.parametrize(
    ("script", "said"),
    [
        ("train_that_fits.py", "Fits on NVIDIA GeForce RTX 4090"),
        ("train.py", "Out of GPU memory in the forward pass"),
    ],
)
def test_what_the_tutorial_says_of_its_scripts(
    cuda_python: Path, emulator_cache: Path, script: str, said: str
) -> None:
    assert COMMAND is not None
    command = COMMAND[1].replace("train_that_fits.py", script)
    done = subprocess.run(
        [sys.executable, "-m", *shlex.split(command)],
        cwd=ROOT,
        env={
            **os.environ,
            "PYTHONPATH": str(ROOT),
            "XDG_CACHE_HOME": str(emulator_cache),
            "PATH": f"{cuda_python.parent}:{os.environ['PATH']}",
        },
        capture_output=True,
        text=True,
        timeout=250,
        check=False,
    )
    assert said in done.stderr, done.stderr[-3000:]
