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
    "dpo, accumulation": {"objective": "dpo", "completion_length": 16, "effective_batch_size": 4},
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
pytestmark = [pytest.mark.slow, pytest.mark.timeout(600), needs_trl, needs_quantized_cpu]


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


def answers_for(folder: Path, cases: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """What rungs and scripts answer, one after the other."""
    meter = Path(__file__).parents[1] / "examples" / "script_meter.py"
    (folder / "cases.json").write_text(json.dumps(cases))
    command = [sys.executable, str(meter), str(folder / "cases.json"), str(folder / "answers.json")]
    ended = subprocess.run(command, capture_output=True, text=True)
    assert ended.returncode == 0, ended.stderr
    answers: list[dict[str, Any]] = json.loads((folder / "answers.json").read_text())
    return answers


def rung_and_script(name: str, model: Path, folder: Path) -> list[dict[str, Any]]:
    """The two cases of a rung."""
    config = config_of(name)
    script = folder / "train.py"
    script.write_text(export(StackRung(config, name, str(model), device="cpu"), "trl"))
    job = replace(tiny_job(), config=config, timed=False)
    words = ["--data", str(data_of(config, folder))]
    return [{"job": dumps(job)}, {"script": str(script), "words": words}]


def ends_early(folder: Path) -> list[dict[str, Any]]:
    """A rung of GRPO and its script, where each second completion ends early.

    So in most steps one of two does.
    """
    cases = rung_and_script("grpo", ending(trainable_folder(folder / "model"), 11), folder)
    cases[1]["words"] += ["--epochs", "3"]
    return cases


def with_fp8(model: Path, folder: Path) -> list[dict[str, Any]]:
    """Scripts in FP8, which is for GPUs: no rung has it on the CPU, but the scripts run there."""
    data = words_file(folder / "train.txt", LENGTH * 8)
    config = replace(config_of("dpo"), objective="default", fp8="torchao")
    cases = []
    for target in ("trainer", "trl", "pytorch"):
        script = folder / target / "train.py"
        script.parent.mkdir()
        script.write_text(export(StackRung(config, "fp8", str(model), device="cpu"), target))
        cases.append({"script": str(script), "words": ["--data", str(data)]})
    return cases


def with_a_bad_file(folder: Path) -> dict[str, Any]:
    """A script whose data lacks a column, and whose model is nowhere."""
    config = TrainConfig(micro_batch_size=2, effective_batch_size=4, objective="dpo")
    script, data = folder / "train.py", folder / "bad.jsonl"
    script.write_text(export(StackRung(config, "a", "no/model"), "trl"))
    data.write_text('{"prompt": "a", "chosen": "b"}')
    return {"script": str(script), "words": ["--data", str(data)]}


@pytest.fixture(scope="module")
def answers(tmp_path_factory: pytest.TempPathFactory) -> dict[str, list[dict[str, Any]]]:
    """The answers of all cases by what they are of: one process imports TRL for all of them."""
    base = tmp_path_factory.mktemp("objectives")

    def folder_of(name: str) -> Path:
        folder = base / name
        folder.mkdir()
        return folder

    model = trainable_folder(base / "model")
    endless = ending(trainable_folder(base / "endless"), 0)
    cases: dict[str, list[dict[str, Any]]] = {}
    for name in CASES:
        by_grpo = config_of(name).objective == "grpo"
        cases[name] = rung_and_script(name, endless if by_grpo else model, folder_of(name))
    cases["ends early"] = ends_early(folder_of("ends early"))
    cases["fp8"] = with_fp8(model, folder_of("fp8"))
    cases["bad file"] = [with_a_bad_file(folder_of("bad file"))]
    found = iter(answers_for(base, [case for one in cases.values() for case in one]))
    return {name: [next(found) for _ in one] for name, one in cases.items()}


def peaks(answers: list[dict[str, Any]]) -> list[int]:
    """The peaks of rungs and scripts, in bytes."""
    errors = [answer["error"] for answer in answers if "error" in answer]
    assert not errors, errors[0]
    return [answer["peak"] for answer in answers]


def test_a_script_needs_what_its_rung_needs(answers: dict[str, list[dict[str, Any]]]) -> None:
    more = {}
    for name in CASES:
        rung, script = peaks(answers[name])
        more[name] = script - rung
    assert more == dict.fromkeys(CASES, 0)


def test_completions_that_end_early_need_masks(answers: dict[str, list[dict[str, Any]]]) -> None:
    """A rung has no padding, so sdpa needs no mask. With padding, each layer keeps one of all
    pairs of tokens.
    """
    rung, script = peaks(answers["ends early"])
    assert script - rung == LAYERS * ROWS * LENGTH * LENGTH * BFLOAT16


def test_scripts_run_with_fp8(answers: dict[str, list[dict[str, Any]]]) -> None:
    assert all(peaks(answers["fp8"]))


def test_a_bad_file_is_told_before_the_model_is_loaded(
    answers: dict[str, list[dict[str, Any]]],
) -> None:
    (answer,) = answers["bad file"]
    told = answer["error"].splitlines()[-1]
    assert told.startswith("SystemExit: ")  # with a text, so the exit code is 1
    assert told.endswith("bad.jsonl:1: rejected must be a text or chat messages")
