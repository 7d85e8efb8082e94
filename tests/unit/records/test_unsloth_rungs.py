"""Rungs with Unsloth: what combines, where they run, and how they are read and written."""

from __future__ import annotations

from typing import Any

import pytest

from oomdoctor.errors import OomDoctorError
from oomdoctor.records.configuration.config import TrainConfig
from oomdoctor.records.configuration.faults import config_faults, unsupported
from oomdoctor.records.configuration.keys import label_of
from oomdoctor.stacks.export import export, lost, settings_of
from oomdoctor.stacks.reading.finish import finished
from oomdoctor.stacks.reading.merge import draft_of
from oomdoctor.stacks.reading.script import read_script
from oomdoctor.stacks.rung import StackRung

LORA: dict[str, Any] = {"library": "unsloth", "method": "lora"}


@pytest.mark.parametrize(
    ("key", "changes"),
    [
        ("attention", {"attention": "eager"}),
        ("loss", {"loss": "liger"}),
        ("packing", {"packing": "packed"}),
        ("objective", {"objective": "dpo"}),
        ("sharding", {"sharding": "ddp", "world_size": 2}),
        ("activation_checkpointing", {"activation_checkpointing": "mlp"}),
        ("weights_dtype", {"weights_dtype": "float32"}),
        ("weights_dtype", {"weights_dtype": "float16", "method": "full"}),
        ("autocast_dtype", {"autocast_dtype": "bfloat16", "method": "full"}),
        ("lora_targets", {"lora_targets": "attention"}),
    ],
)
def test_what_unsloth_decides_cannot_be_said(key: str, changes: dict[str, Any]) -> None:
    assert key in [name for name, _ in config_faults(TrainConfig(**LORA | changes))]


def test_usual_rungs_combine_and_are_named() -> None:
    for changes in ({}, {"autocast_dtype": "bfloat16"}, {"activation_checkpointing": "offload"}):
        assert config_faults(TrainConfig(**LORA | changes)) == []
    assert label_of(TrainConfig(**LORA)) == "lora-r16+unsloth"


def test_it_needs_a_gpu_and_cannot_be_simulated() -> None:
    config = TrainConfig(**LORA)
    assert "--emulate" in (unsupported(config, "simulated", bool) or "")
    assert "--emulate" in (unsupported(config, "cpu", bool) or "")
    assert unsupported(config, "anywhere", bool) is None


def config_of(text: str) -> TrainConfig:
    return finished(draft_of([read_script("train.py", text)])).config


@pytest.mark.parametrize(
    ("setting", "library"), [("", "unsloth"), ("packing=True", "transformers")]
)
def test_a_script_has_the_library_if_a_rung_can(setting: str, library: str) -> None:
    text = (
        "model, t = FastLanguageModel.from_pretrained(model_name='u/m', max_seq_length=512)\n"
        "model = FastLanguageModel.get_peft_model(model, r=32, target_modules=['q_proj'])\n"
        f"SFTTrainer(model=model, args=SFTConfig({setting}))\n"
    )
    training = finished(draft_of([read_script("train.py", text)]))
    assert training.config.library == library
    said = [one.reason for one in training.assumed if one.key == "library"]
    assert [reason.split(":")[0] for reason in said] == ["packing"] * (library == "transformers")


def test_only_the_script_for_unsloth_expresses_it() -> None:
    config = TrainConfig(micro_batch_size=2, effective_batch_size=4, **LORA)
    rung = StackRung(config, "a", "some/model", origin=("Measured.",))
    assert config_of(export(rung, "unsloth")).library == "unsloth"
    with pytest.raises(OomDoctorError, match="library = unsloth"):
        export(rung, "trl")


@pytest.mark.parametrize("program", ["llama-factory", "axolotl"])
def test_files_of_programs_hold_it_or_say_so(program: Any) -> None:
    config = TrainConfig(micro_batch_size=2, effective_batch_size=4, **LORA)
    keys = [one.key for one in lost(config, program, settings_of(config, program))]
    assert ("library" in keys) == (program == "axolotl")
