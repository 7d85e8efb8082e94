"""Scripts for TRL's other trainers and for packed rows need on the CPU what their rung needs."""

from __future__ import annotations

import json
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from library_ends import needs_quantized_cpu, needs_trl
from tiny_models import tiny_job
from tiny_rows import ending, pairs_file, texts_file, whole_pairs
from tiny_text import trainable_folder, words_file

from oomdoctor.records.codec import dumps
from oomdoctor.records.configuration.config import TrainConfig, scored_tokens
from oomdoctor.stacks.export import export
from oomdoctor.stacks.rung import StackRung

ROWS, LENGTH = 2, 64
LAYERS, BFLOAT16 = 2, 2
CASES: dict[str, dict[str, Any]] = {
    "dpo": {"objective": "dpo"},
    "dpo, LoRA": {"objective": "dpo", "method": "lora", "activation_checkpointing": "full"},
    "dpo, precomputed": {"objective": "dpo", "reference": "precomputed"},
    "dpo, QLoRA": {"objective": "dpo", "method": "qlora", "quantization": "nf4"},
    "dpo, accumulation": {
        "objective": "dpo",
        "completion_length": 16,
        "effective_batch_size": 4,
    },
    "reward": {"objective": "reward"},
    "reward, LoRA": {"objective": "reward", "method": "lora", "optimizer": "adamw_bnb_8bit"},
    "grpo": {"objective": "grpo", "num_generations": 2},
    "grpo, reference": {"objective": "grpo", "num_generations": 2, "reference": "kl"},
    "grpo, LoRA": {
        "objective": "grpo",
        "num_generations": 4,
        "method": "lora",
        "completion_length": 16,
        "effective_batch_size": 4,
    },
    "packed": {"packing": "packed", "document_length": 16},
    "packed, chunked": {"packing": "packed", "document_length": 16, "loss": "chunked"},
    "padding-free, LoRA": {"packing": "padding_free", "method": "lora"},
    "padded": {"padding": "longest"},
    "padded, LoRA": {"padding": "max_length", "method": "lora", "loss": "chunked"},
}
pytestmark = [
    pytest.mark.slow,
    pytest.mark.timeout(600),
    needs_trl,
    needs_quantized_cpu,
]


def config_of(name: str) -> TrainConfig:
    base: dict[str, Any] = {
        "micro_batch_size": ROWS,
        "effective_batch_size": ROWS,
        "sequence_length": LENGTH,
    }
    return TrainConfig(**(base | CASES[name]))


def data_of(config: TrainConfig, folder: Path) -> Path:
    """A file whose rows have as many tokens as those of the rung."""
    if config.packing != "none":
        each = config.document_length if config.packing == "packed" else LENGTH
        return texts_file(folder / "texts.jsonl", 8 * LENGTH // each, each)
    if config.padding != "none":
        # One short row is padded to the row beside it; the others are read ahead as the rung's are.
        rows = 1 if config.padding == "longest" else 8
        texts = texts_file(folder / "texts.jsonl", rows, LENGTH - 1)
        whole = texts_file(folder / "whole.jsonl", 8 - rows, LENGTH)
        texts.write_text(texts.read_text() + whole.read_text())
        return texts
    completion = scored_tokens(config)
    # Four optimizer steps: the last one reads no batch ahead.
    rows = 4 if config.objective == "grpo" else 4 * config.effective_batch_size
    pairs = pairs_file(folder / "pairs.jsonl", rows, LENGTH - completion, completion)
    return whole_pairs(pairs, folder / "whole.jsonl") if config.objective == "reward" else pairs


def measured(folder: Path, cases: list[dict[str, Any]]) -> list[int]:
    """The peaks of rungs and scripts, in bytes."""
    meter = Path(__file__).parents[1] / "examples" / "script_meter.py"
    (folder / "cases.json").write_text(json.dumps(cases))
    command = [sys.executable, str(meter), str(folder / "cases.json"), str(folder / "answers.json")]
    ended = subprocess.run(command, capture_output=True, text=True)
    assert ended.returncode == 0, ended.stderr
    answers = json.loads((folder / "answers.json").read_text())
    errors = [answer["error"] for answer in answers if "error" in answer]
    assert not errors, errors[0]
    return [answer["peak"] for answer in answers]


def rung_and_script(name: str, model: Path, folder: Path) -> list[dict[str, Any]]:
    """The two cases of a rung."""
    config = config_of(name)
    script = folder / "train.py"
    script.write_text(export(StackRung(config, name, str(model), device="cpu"), "trl"))
    job = replace(tiny_job(), config=config, timed=False)
    words = ["--data", str(data_of(config, folder))]
    return [{"job": dumps(job)}, {"script": str(script), "words": words}]


def test_a_script_needs_what_its_rung_needs(tmp_path: Path) -> None:
    model = trainable_folder(tmp_path / "model")
    endless = ending(trainable_folder(tmp_path / "endless"), 0)
    cases = []
    for name in CASES:
        folder = tmp_path / name
        folder.mkdir()
        by_grpo = config_of(name).objective == "grpo"
        cases += rung_and_script(name, endless if by_grpo else model, folder)
    peaks = measured(tmp_path, cases)
    more = {
        name: script - rung
        for name, rung, script in zip(CASES, peaks[::2], peaks[1::2], strict=True)
    }
    assert more == dict.fromkeys(CASES, 0)


def test_completions_that_end_early_need_masks_and_fp8_runs(tmp_path: Path) -> None:
    """A rung has no padding, so sdpa needs no mask. With padding, each layer keeps one of all
    pairs of tokens. FP8 is for GPUs, so no rung has it on the CPU; the scripts run there.
    """
    # Each second completion ends early, so in most steps one of two does.
    model = ending(trainable_folder(tmp_path / "model"), 11)
    cases = rung_and_script("grpo", model, tmp_path)
    cases[1]["words"] += ["--epochs", "3"]
    data = words_file(tmp_path / "train.txt", LENGTH * 8)
    config = replace(config_of("dpo"), objective="default", fp8="torchao")
    for target in ("trainer", "trl", "pytorch"):
        script = tmp_path / target / "train.py"
        script.parent.mkdir()
        script.write_text(export(StackRung(config, "fp8", str(model), device="cpu"), target))
        cases.append({"script": str(script), "words": ["--data", str(data)]})
    rung, script_of_grpo, *_ = measured(tmp_path, cases)
    masks = LAYERS * ROWS * LENGTH * LENGTH * BFLOAT16
    assert script_of_grpo - rung == masks


def test_a_bad_file_is_told_before_the_model_is_loaded(tmp_path: Path) -> None:
    config = TrainConfig(micro_batch_size=2, effective_batch_size=4, objective="dpo")
    (tmp_path / "train.py").write_text(export(StackRung(config, "a", "no/model"), "trl"))
    (tmp_path / "bad.jsonl").write_text('{"prompt": "a", "chosen": "b"}')
    command = [sys.executable, "train.py", "--data", "bad.jsonl"]
    ended = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True)
    assert ended.returncode == 1
    assert ended.stderr.splitlines()[-1] == (
        "bad.jsonl:1: rejected must be a text or chat messages"
    )
