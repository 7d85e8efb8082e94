"""Transformer Engine itself on the emulated GPU: its rungs, and the scripts of `export`."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from card_reports import larger, report
from emulated_run import Watched
from tiny_text import words_file

from oomdoctor.records.configuration.config import TrainConfig
from oomdoctor.stacks.export import export
from oomdoctor.stacks.rung import StackRung

LENGTH, BATCH, HIDDEN, WORDS = 512, 2, 256, 4096
SIZES = {
    "hidden_size": HIDDEN,
    "intermediate_size": 2 * HIDDEN,
    "vocab_size": WORDS,
    "max_position_embeddings": 2 * LENGTH,
}
TARGETS = ("trainer", "trl")
FP8: dict[str, Any] = {"fp8": "transformer_engine", "micro_batch_size": BATCH}
LENGTHS = ("--seq-len", str(LENGTH), "--effective-batch", str(BATCH))

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]


def test_scripts_and_plans_need_what_the_rung_needs(
    engine_python: Path, emulator_cache: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = larger("dense", SIZES, tmp_path / "model", monkeypatch)
    words = words_file(tmp_path / "words.txt", 8 * LENGTH)
    amp: dict[str, Any] = {"weights_dtype": "float32", "autocast_dtype": "bfloat16"}
    rungs = [FP8, FP8 | amp]
    asked = [
        f"--rung={','.join(f'{key}={value}' for key, value in rung.items())}" for rung in rungs
    ]
    probed = report(
        emulator_cache,
        engine_python,
        *("probe", str(model), "--emulate", "L4", "--no-predict", *LENGTHS, *asked),
    )
    plan = ("plan", str(model), "--gpu", "L4", *LENGTHS, *asked)
    planned = report(emulator_cache, engine_python, *plan)
    for rung, row, other in zip(rungs, probed["results"], planned["results"], strict=True):
        assert (row["outcome"], row["evidence"]) == ("fits", "emulated"), row["failure"]
        for key in ("outcome", "evidence", "peak_allocated_bytes", "peak_reserved_bytes"):
            assert row[key] == other[key], (rung, key)
    watched = Watched(tmp_path, engine_python, emulator_cache)
    for rung, row in zip(rungs, probed["results"], strict=True):
        settings = {"sequence_length": LENGTH, "effective_batch_size": BATCH, **rung}
        for target in TARGETS:
            stack_rung = StackRung(
                TrainConfig(**settings), "rung", str(model), origin=("Measured.",)
            )
            script = export(stack_rung, target)
            command = ("python", "train.py", "--data", str(words))
            seen, _, error = watched.run("L4", script, *command, options=("--steps", "all"))
            assert len(seen.ranks) == 1, error
            (rank,) = seen.ranks
            assert rank.outcome == "fits", error
            assert rank.peak_allocated_bytes == row["peak_allocated_bytes"], (rung, target)
            assert rank.peak_reserved_bytes == row["peak_reserved_bytes"], (rung, target)


def test_the_output_layer_gets_weights_of_its_own(
    engine_python: Path, emulator_cache: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """accelerate replaces each linear layer, and the one that shared its weights shares no more."""
    model = larger("gqa-tied", SIZES, tmp_path / "model", monkeypatch)
    options = ("--emulate", "L4", "--no-predict", "--micro-batch", str(BATCH), *LENGTHS)
    rungs = ("fp8=none", "fp8=transformer_engine")
    asked = [word for rung in rungs for word in ("--rung", rung)]
    found = report(emulator_cache, engine_python, "probe", str(model), *options, *asked)
    plain, own = found["results"]
    assert own["trainable_parameters"] - plain["trainable_parameters"] == WORDS * HIDDEN
