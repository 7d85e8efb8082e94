"""Unsloth itself on the emulated GPU: its rungs, and the script that `export` writes for it.

The script needs what its rung needs, but for one thing. Unsloth computes the loss of rows that have
a label only. Which do is known where the labels' values are; where they are not, all rows count,
and one of each sequence has none.
"""

from __future__ import annotations

from pathlib import Path

import pytest
from card_reports import larger, report
from emulated_run import Watched
from tiny_text import words_file

from oomdoctor.records.configuration.config import TrainConfig
from oomdoctor.stacks.export import export
from oomdoctor.stacks.rung import StackRung

LENGTH, BATCH, HIDDEN, WORDS = 1024, 2, 256, 8192
# Large enough that logits and activations decide, and not what Unsloth takes when it is imported.
SIZES = {
    "hidden_size": HIDDEN,
    "intermediate_size": 2 * HIDDEN,
    "vocab_size": WORDS,
    "max_position_embeddings": 2 * LENGTH,
}

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]


def test_a_script_needs_what_the_plan_of_it_says(
    unsloth_python: Path, emulator_cache: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = larger("dense", SIZES, tmp_path / "model", monkeypatch)
    data = words_file(tmp_path / "words.txt", 8 * LENGTH)
    config = TrainConfig(
        library="unsloth",
        method="lora",
        micro_batch_size=BATCH,
        sequence_length=LENGTH,
        effective_batch_size=BATCH,
    )
    script = export(StackRung(config, "rung", str(model), origin=("Measured.",)), "unsloth")
    (tmp_path / "mine.py").write_text(script)
    words = ("plan", "--from", str(tmp_path / "mine.py"), "--gpu", "L4")
    found = report(emulator_cache, unsloth_python, *words)
    (row,) = found["results"]
    assert (row["label"], row["outcome"], row["evidence"]) == ("yours", "fits", "emulated")
    assert row["config"]["library"] == "unsloth" and row["micro_batch_size"] == BATCH
    assert found["yours"]["reason"] == "changes of a configuration with Unsloth cannot be simulated"

    watched = Watched(tmp_path, unsloth_python, emulator_cache)
    command = ("python", "train.py", "--data", str(data))
    seen, _, error = watched.run("L4", script, *command, options=("--steps", "all"))
    (rank,) = seen.ranks
    assert rank.outcome == "fits", error
    difference = (rank.peak_allocated_bytes or 0) - row["peak_allocated_bytes"]
    without_label = BATCH * 4 * (WORDS + HIDDEN)
    assert difference in (0, -without_label)


def test_its_rungs_differ_from_plain_ones_as_they_should(
    unsloth_python: Path, emulator_cache: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = larger("gqa-tied", SIZES, tmp_path / "model", monkeypatch)
    qlora = "method=qlora,quantization=nf4"
    rungs = (qlora, f"{qlora},library=unsloth,activation_checkpointing=offload")
    found = report(
        emulator_cache,
        unsloth_python,
        *("probe", str(model), "--emulate", "L4", "--no-predict", "--seq-len", str(LENGTH)),
        *("--micro-batch", str(BATCH), "--effective-batch", str(BATCH)),
        *(word for rung in rungs for word in ("--rung", rung)),
    )
    for row in found["results"]:
        assert (row["outcome"], row["evidence"]) == ("fits", "emulated"), row["failure"]
    plain, own = found["results"]
    trained = [row["trainable_parameters"] for row in found["results"]]
    assert len(set(trained)) == 1
    logits = 4 * BATCH * LENGTH * WORDS  # in fp32; the plain loss holds them and their gradient
    assert plain["peak_allocated_bytes"] - own["peak_allocated_bytes"] > logits
    assert own["peak_phase"] == "forward"  # its loss makes them there
    assert own["peak_allocated_bytes"] > logits
