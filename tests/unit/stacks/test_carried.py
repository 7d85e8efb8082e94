"""Settings without effect on memory, from one program's file into another's."""

from __future__ import annotations

import ast
from pathlib import Path
from typing import Any

import pytest
import yaml

from oomdoctor.commands.export import rung_of_files
from oomdoctor.stacks.export import export

SFT = """\
model_name_or_path: meta-llama/Meta-Llama-3.1-8B-Instruct
per_device_train_batch_size: 2
max_length: 1024
bf16: true
dtype: bfloat16
learning_rate: 5e-6
num_train_epochs: 3
warmup_steps: 0.1
lr_scheduler_type: linear
weight_decay: 0.01
max_grad_norm: 0.5
seed: 7
output_dir: mine
dataset_name: my/data
report_to: wandb
"""
DPO = SFT + "beta: 0.3\n"


def exported(tmp_path: Path, text: str, target: str) -> tuple[str, str]:
    path = tmp_path / "train.yaml"
    path.write_text(text)
    rung, notes = rung_of_files([str(path)], target)
    return export(rung, target), "\n".join(notes)


@pytest.mark.parametrize(
    ("target", "wanted"),
    [
        ("axolotl", {"learning_rate": 5e-6, "num_epochs": 3, "warmup_ratio": 0.1, "seed": 7,
                     "lr_scheduler": "linear", "weight_decay": 0.01, "max_grad_norm": 0.5,
                     "output_dir": "mine"}),
        ("llama-factory", {"learning_rate": 5e-6, "num_train_epochs": 3, "warmup_ratio": 0.1,
                           "lr_scheduler_type": "linear", "seed": 7, "max_grad_norm": 0.5}),
        ("torchtune", {"epochs": 3, "seed": 7, "clip_grad_norm": 0.5, "output_dir": "mine"}),
    ],
)  # fmt: skip
def test_a_file_has_what_both_programs_name(
    tmp_path: Path, target: str, wanted: dict[str, Any]
) -> None:
    text, notes = exported(tmp_path, SFT, target)
    found = yaml.safe_load(text)
    assert {name: found.get(name) for name in wanted} == wanted
    if target == "torchtune":
        assert (found["optimizer"]["lr"], found["optimizer"]["weight_decay"]) == (5e-6, 0.01)
        assert "warmup_steps" in notes and "lr_scheduler_type" in notes
    assert "dataset_name, report_to" in notes
    assert "learning_rate" not in notes and "seed" not in notes


@pytest.mark.parametrize("target", ["trainer", "trl", "unsloth"])
def test_a_script_has_what_its_arguments_name(tmp_path: Path, target: str) -> None:
    text, notes = exported(tmp_path, SFT, target)
    ast.parse(text)
    for said in ("seed=7", "warmup_steps=0.1", 'lr_scheduler_type="linear"', "max_grad_norm=0.5",
                 "weight_decay=0.01", "type=float, default=5e-06", "type=int, default=3",
                 '"--output", default="mine"'):  # fmt: skip
        assert said in text
    assert "warmup" not in notes and "dataset_name" in notes


@pytest.mark.parametrize(
    ("target", "said"),
    [("axolotl", "rl_beta: 0.3"), ("llama-factory", "pref_beta: 0.3"), ("trl", "beta=0.3")],
)
def test_beta_is_that_of_the_file(tmp_path: Path, target: str, said: str) -> None:
    text, notes = exported(tmp_path, DPO, target)
    assert said in text and "beta" not in notes


@pytest.mark.parametrize("old", ["warmup_ratio: 0.1", "warmup_steps: 0.1"])
def test_a_share_of_warm_up_has_one_meaning(tmp_path: Path, old: str) -> None:
    text = SFT.replace("warmup_steps: 0.1", old)
    assert "warmup_ratio: 0.1" in exported(tmp_path, text, "axolotl")[0]
    assert "warmup_steps=0.1" in exported(tmp_path, text, "trainer")[0]
    steps = SFT.replace("warmup_steps: 0.1", "warmup_steps: 20")
    found = yaml.safe_load(exported(tmp_path, steps, "axolotl")[0])
    assert found["warmup_steps"] == 20 and "warmup_ratio" not in found


def test_what_a_target_cannot_say_is_listed(tmp_path: Path) -> None:
    text, notes = exported(tmp_path, SFT.replace("epochs: 3", "epochs: 1.5"), "pytorch")
    assert "type=int, default=1)" in text and "default=5e-06" in text
    for name in ("num_train_epochs", "seed", "warmup_steps", "weight_decay", "max_grad_norm"):
        assert name in notes
    _, notes = exported(tmp_path, DPO, "accelerate")
    assert "beta" in notes and "learning_rate" in notes


def test_words_of_one_program_stay_there(tmp_path: Path) -> None:
    text, notes = exported(
        tmp_path, "base_model: a/b\nsequence_len: 512\nlr_scheduler: rex\nmicro_batch_size: 4\n"
        "rl: grpo\ntrl:\n  beta: 0.01\n  num_generations: 4\n", "trl"
    )  # fmt: skip
    assert "rex" not in text and "lr_scheduler" in notes
    assert "beta=0.01" in text
