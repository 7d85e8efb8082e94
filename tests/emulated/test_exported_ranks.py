"""Exports for several GPUs, started as they say: each rank needs what a rank of the rung needs."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from emulated_run import Watched, torchrun
from tiny_rows import ending, pairs_file, texts_file
from tiny_text import trainable_folder, words_file
from weekly_rows import weekly

from oomdoctor.records.configuration.config import TrainConfig, scored_tokens
from oomdoctor.stacks.export import export
from oomdoctor.stacks.rung import StackRung

ROOT = Path(__file__).parents[2]
BY_ACCELERATE = ("accelerate", "launch", "--config_file", "accelerate.yaml", "train.py")
pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]


def data_of(config: TrainConfig, folder: Path) -> Path:
    """A file whose rows have as many tokens as those of the rung."""
    if config.packing == "packed":
        return texts_file(folder / "train.jsonl", 64, config.document_length)
    if config.objective == "default":
        return words_file(folder / "train.txt", 64 * 16)
    completion = scored_tokens(config)
    return pairs_file(folder / "train.jsonl", 16, 64 - completion, completion)


@pytest.mark.parametrize(
    ("values", "target", "command"),
    [
        pytest.param({"sharding": "zero2"}, "trainer", BY_ACCELERATE, id="ZeRO 2"),
        pytest.param(
            {"sharding": "fsdp", "objective": "dpo", "reference": "precomputed"},
            "trl",
            torchrun(2),
            id="FSDP 2, DPO",
        ),
        weekly(
            {"sharding": "fsdp", "context_parallel_size": 2},
            "trainer",
            torchrun(2),
            id="FSDP 2, shared sequences",
        ),
        weekly(
            {"sharding": "zero3", "context_parallel_size": 2, "activation_checkpointing": "full"},
            "trainer",
            torchrun(2),
            id="ZeRO 3, shared sequences",
        ),
        pytest.param({"sharding": "tensor_parallel"}, "trainer", torchrun(2), id="parts of layers"),
        weekly(
            {"sharding": "ddp", "objective": "grpo", "method": "lora", "num_generations": 2},
            "trl",
            BY_ACCELERATE,
            id="DDP, GRPO",
        ),
        weekly(
            {"sharding": "fsdp", "activation_checkpointing": "full"},
            "trl",
            torchrun(2),
            id="FSDP 2",
        ),
        weekly(
            {"sharding": "zero2", "packing": "packed", "document_length": 16, "loss": "chunked"},
            "trl",
            BY_ACCELERATE,
            id="ZeRO 2, packed, chunked",
        ),
    ],
)
def test_each_rank_needs_what_a_rank_of_the_rung_needs(
    values: dict[str, Any],
    target: str,
    command: tuple[str, ...],
    watched: Watched,
    cuda_python: Path,
    emulator_cache: Path,
    tmp_path: Path,
) -> None:
    model = trainable_folder(tmp_path / "model")
    config = TrainConfig(
        micro_batch_size=2, effective_batch_size=4, sequence_length=64, world_size=2, **values
    )
    data = data_of(config, tmp_path)
    if config.objective == "grpo":
        ending(model, 0)
    rung = StackRung(config, "shared", str(model), origin=("Measured.",))
    (tmp_path / "accelerate.yaml").write_text(export(rung, "accelerate"))
    words = (*command, "--data", str(data))
    report, _, error = watched.run("2xL4", export(rung, target), *words, options=("--steps", "all"))
    assert [rank.outcome for rank in report.ranks] == ["fits", "fits"], error
    keys = values | {"autocast_dtype": config.autocast_dtype}  # else a typed rung has the usual one
    text = ",".join(f"{key}={value}" for key, value in keys.items())
    ended = subprocess.run(
        [
            *(sys.executable, "-m", "oomdoctor", "probe", str(model), "--emulate", "2xL4"),
            *("--gpus", "2", "--no-predict", "--recipe", "none", "--seq-len", "64"),
            *("--micro-batch", "2", "--effective-batch", "4", "--rung", text),
            *("--python", str(cuda_python), "--json", "--quiet"),
        ],
        capture_output=True,
        text=True,
        env=os.environ | {"PYTHONPATH": str(ROOT), "XDG_CACHE_HOME": str(emulator_cache)},
    )
    (result,) = json.loads(ended.stdout)["results"]
    # Of a sequence that FSDP's ranks share, they compute parts of different sizes.
    uneven = config.context_parallel_size > 1 and config.sharding == "fsdp"
    like_the_first = report.ranks[:1] if uneven else report.ranks
    for rank in like_the_first:
        assert (rank.peak_allocated_bytes, rank.peak_reserved_bytes) == (
            result["peak_allocated_bytes"],
            result["peak_reserved_bytes"],
        )
