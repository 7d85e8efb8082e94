"""Exported scripts on the emulated GPU need what their rung needs, to the byte."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from emulated_run import Watched
from tiny_text import trainable_folder, words_file
from weekly_rows import weekly

from oomdoctor.records.configuration.config import TrainConfig
from oomdoctor.stacks.export import export
from oomdoctor.stacks.rung import StackRung

ROOT = Path(__file__).parents[2]
Rungs = tuple[tuple[dict[str, Any], tuple[str, ...]], ...]
RUNGS: Rungs = (
    ({"activation_checkpointing": "full"}, ("pytorch", "trl")),
    ({"method": "qlora", "quantization": "nf4", "effective_batch_size": 4}, ("trainer",)),
)
ACCUMULATES: Rungs = (({"effective_batch_size": 8, "method": "lora"}, ("pytorch", "trainer")),)
pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]


@pytest.mark.parametrize("asked", [RUNGS, weekly(ACCUMULATES)], ids=["most", "accumulates"])
def test_exported_scripts_need_what_their_rung_needs(
    asked: Rungs, watched: Watched, cuda_python: Path, emulator_cache: Path, tmp_path: Path
) -> None:
    model = trainable_folder(tmp_path / "model")
    data = words_file(tmp_path / "train.txt", 64 * 24)
    rungs = [{"effective_batch_size": 2, "autocast_dtype": "none", **values} for values, _ in asked]
    words = [
        word
        for rung in rungs
        for word in ("--rung", ",".join(f"{key}={value}" for key, value in rung.items()))
    ]
    ended = subprocess.run(
        [
            *(sys.executable, "-m", "oomdoctor", "probe", str(model), "--emulate", "L4"),
            *("--no-predict", "--recipe", "none", "--seq-len", "64", "--micro-batch", "2"),
            *("--python", str(cuda_python), "--json", "--quiet", *words),
        ],
        capture_output=True,
        text=True,
        env=os.environ | {"PYTHONPATH": str(ROOT), "XDG_CACHE_HOME": str(emulator_cache)},
    )
    results = json.loads(ended.stdout)["results"]
    for rung, (_, targets), result in zip(rungs, asked, results, strict=True):
        config = TrainConfig(**{"micro_batch_size": 2, "sequence_length": 64, **rung})
        for target in targets:
            script = export(StackRung(config, target, str(model), origin=("Measured.",)), target)
            command = ("python", "train.py", "--data", str(data))
            report, _, error = watched.run("L4", script, *command, options=("--steps", "all"))
            (rank,) = report.ranks
            assert rank.outcome == "fits", error
            assert rank.peak_allocated_bytes == result["peak_allocated_bytes"], (rung, target)
            assert rank.peak_reserved_bytes == result["peak_reserved_bytes"], (rung, target)
