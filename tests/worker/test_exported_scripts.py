"""The scripts of `export` run as they are, and need on the CPU what their rung needs, to the byte.

So does a Trainer that classifies images, for which there is no export.
"""

from __future__ import annotations

import fcntl
import json
import os
import subprocess
import sys
from dataclasses import replace
from importlib.metadata import version
from pathlib import Path
from typing import Any

import pytest
from library_ends import HAS_TRL, QUANTIZES_ON_CPU, needs_quantized_cpu, needs_trl
from tiny_configs import CONFIGS
from tiny_models import tiny_job
from tiny_text import trainable_folder, words_file

from oomdoctor.records.codec import dumps
from oomdoctor.records.configuration.config import TrainConfig
from oomdoctor.stacks.export import export
from oomdoctor.stacks.rung import StackRung

ROWS, LENGTH = 2, 64
VERSIONS = {"transformers": version("transformers")}  # as the report of a run has them
TARGETS = ("pytorch", "trainer", "trl")
RUNGS: dict[str, dict[str, Any]] = {
    "full bf16": {},
    "full fp32 + amp": {"weights_dtype": "float32", "autocast_dtype": "bfloat16"},
    "checkpointing, 8-bit AdamW": {
        "activation_checkpointing": "full",
        "optimizer": "adamw_bnb_8bit",
    },
    "LoRA on attention": {"method": "lora", "lora_targets": "attention"},
    "QLoRA": {"method": "qlora", "quantization": "nf4", "activation_checkpointing": "full"},
    "QLoRA, adapters bf16": {"method": "qlora", "quantization": "nf4", "adapter_dtype": "bfloat16"},
    "LoRA, adapters bf16": {"method": "lora", "adapter_dtype": "bfloat16"},
    "QLoRA, saved": {
        "method": "qlora",
        "quantization": "nf4",
        "kbit_prepare": "none",
        "modules_to_save": ("lm_head",),
    },
    "accumulation, adafactor": {"effective_batch_size": 4, "optimizer": "adafactor"},
    "frozen, sgd": {"frozen_layers": 1, "optimizer": "sgd"},
    "MLPs checkpointed": {"activation_checkpointing": "mlp", "optimizer": "adamw_torch"},
    "long accumulation": {"effective_batch_size": 8},
    "chunked": {"loss": "chunked"},
    "chunked, adapters bf16": {
        "loss": "chunked",
        "method": "qlora",
        "quantization": "nf4",
        "adapter_dtype": "bfloat16",
    },
    "chunked, QLoRA": {"loss": "chunked", "method": "qlora", "quantization": "nf4"},
}
CHUNKED = ("chunked", "chunked, adapters bf16", "chunked, QLoRA")
IMAGES: dict[str, dict[str, Any]] = {
    "images": {},
    "images, long accumulation": {"effective_batch_size": 16, "weights_dtype": "float32"},
    "images, LoRA": {"effective_batch_size": 8, "method": "lora"},
}
pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]


def config_of(name: str) -> TrainConfig:
    base: dict[str, Any] = {
        "micro_batch_size": ROWS,
        "effective_batch_size": ROWS,
        "sequence_length": LENGTH,
    }
    return TrainConfig(**(base | (RUNGS | IMAGES)[name]))


@pytest.fixture(scope="module")
def peaks(tmp_path_factory: pytest.TempPathFactory) -> dict[tuple[str, str], int]:
    """The peak of every rung ("probe") and of every script for it, in bytes.

    One of the processes that run tests measures them, and the others read its answers.
    """
    base = tmp_path_factory.getbasetemp()
    folder = (base.parent if "PYTEST_XDIST_WORKER" in os.environ else base) / "exported"
    folder.mkdir(exist_ok=True)
    with (folder / "lock").open("a") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        return _measured_in(folder)


def _measured_in(folder: Path) -> dict[tuple[str, str], int]:
    answered = folder / "answers.json"
    known = answered.exists()
    model = folder / "model" if known else trainable_folder(folder / "model")
    data = folder / "train.txt" if known else words_file(folder / "train.txt", LENGTH * 24)
    cases: dict[tuple[str, str], dict[str, Any]] = {}
    for number, name in enumerate(RUNGS):
        config = config_of(name)
        targets = TARGETS if config.loss == "default" else ("trl",)
        targets = tuple(target for target in targets if target != "trl" or HAS_TRL)
        if not targets or (config.method == "qlora" and not QUANTIZES_ON_CPU):
            continue
        job = replace(tiny_job(), config=config, timed=False)
        cases[name, "probe"] = {"job": dumps(job)}
        rung = StackRung(
            config, name, str(model), origin=("Measured.",), device="cpu", versions=VERSIONS
        )
        for target in targets:
            script = folder / str(number) / target / "train.py"
            script.parent.mkdir(parents=True, exist_ok=True)
            script.write_text(export(rung, target))
            cases[name, target] = {"script": str(script), "words": ["--data", str(data)]}
    for name in IMAGES:
        config = config_of(name)
        cases[name, "probe"] = {
            "job": dumps(replace(tiny_job("image"), config=config, timed=False))
        }
        said = [config.weights_dtype, config.accumulation_steps(), config.method]
        words = [json.dumps(CONFIGS["image"][2]), *map(str, said)]
        script = Path(__file__).parents[1] / "examples" / "image_training.py"
        cases[name, "trainer"] = {"script": str(script), "words": words}
    (folder / "cases.json").write_text(json.dumps(list(cases.values())))
    meter = Path(__file__).parents[1] / "examples" / "script_meter.py"
    command = [sys.executable, str(meter), str(folder / "cases.json"), str(answered)]
    if not known:
        ended = subprocess.run(command, capture_output=True, text=True)
        assert ended.returncode == 0, ended.stderr
    answers = json.loads(answered.read_text())
    errors = [answer["error"] for answer in answers if "error" in answer]
    assert not errors, errors[0]
    return {case: answer["peak"] for case, answer in zip(cases, answers, strict=True)}


@pytest.mark.parametrize(
    "target", [pytest.param(name, marks=needs_trl if name == "trl" else ()) for name in TARGETS]
)
@pytest.mark.parametrize(
    "name",
    [
        pytest.param(name, marks=needs_quantized_cpu if "quantization" in values else ())
        for name, values in RUNGS.items()
        if name not in CHUNKED
    ],
)
def test_the_peak_of_a_script_is_that_of_its_rung(
    peaks: dict[tuple[str, str], int], name: str, target: str
) -> None:
    assert peaks[name, target] == peaks[name, "probe"]


@needs_trl
@pytest.mark.parametrize("name", CHUNKED)
def test_the_loss_in_chunks_needs_what_trl_needs(
    peaks: dict[tuple[str, str], int], name: str
) -> None:
    assert peaks[name, "trl"] == peaks[name, "probe"]


@pytest.mark.parametrize("name", IMAGES)
def test_a_trainer_of_images_needs_what_its_rung_needs(
    peaks: dict[tuple[str, str], int], name: str
) -> None:
    """All micro-batches of a step are held, and with long accumulation they are most of it."""
    assert peaks[name, "trainer"] == peaks[name, "probe"]
