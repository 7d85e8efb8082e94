"""`plan` under `ulimit`, really set: refused at once, or the rungs that a limit ends say so."""

from __future__ import annotations

import json
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[2]
CUDA_BUILD = find_spec("nvidia") is not None


def planned(limit: str, *arguments: str) -> tuple[int, dict[str, Any]]:
    """A plan with JSON, under a limit of the shell."""
    command = [sys.executable, "-m", "oomdoctor", "plan", *arguments, "--json"]
    ended = subprocess.run(
        ["bash", "-c", f'{limit}; exec "$@"', "bash", *command],
        cwd=ROOT,
        capture_output=True,
        encoding="utf-8",
        timeout=240,
    )
    return ended.returncode, json.loads(ended.stdout)


def test_a_plan_that_cannot_run_is_refused_with_lower_bounds():
    code, report = planned("ulimit -S -v 716800", "gpt2", "--gpu", "T4")
    (fault,) = report["errors"]
    assert (code, fault["code"]) == (5, "host_limit")
    assert "`ulimit -v` allows each process 700 MiB; it needs at least 900 MiB" in fault["message"]
    assert "ulimit -Sv unlimited && oomdoctor plan gpt2 --gpu T4" in fault["hint"]
    assert "lower bound" in report["results"][0]["reason"]


@pytest.mark.slow
@pytest.mark.skipif(CUDA_BUILD, reason="the libraries of CUDA alone take more addresses than that")
def test_a_rung_that_reaches_the_limit_names_it():
    # The libraries alone take 0.9 GiB to load. Weights of the size of a vocabulary take none.
    rung = ("--recipe", "none", "--rung", "method=full,weights_dtype=float32")
    code, report = planned("ulimit -v 1250000", "meta-llama/Llama-3.1-8B", "--gpu", "1TiB", *rung)
    (row,) = report["results"]
    assert (code, row["outcome"]) == (6, "host_oom")
    assert "; `ulimit -v` allows each process 1.19 GiB" in row["reason"]
    (warning,) = (one for one in report["warnings"] if one["code"] == "few_addresses")
    assert "oomdoctor plan meta-llama/Llama-3.1-8B --gpu 1TiB" in warning["message"]
