"""The dtype of adapters that each program has, as its code decides it."""

from __future__ import annotations

from typing import Any

import pytest

from oomdoctor.records.configuration.config import TrainConfig
from oomdoctor.records.report.user_training import Document, UserTraining
from oomdoctor.stacks.export import export, lost, settings_of
from oomdoctor.stacks.reading.finish import finished
from oomdoctor.stacks.reading.merge import draft_of
from oomdoctor.stacks.reading.script import read_script
from oomdoctor.stacks.rung import StackRung

TRL = {"model_name_or_path": "a/b", "use_peft": True, "max_length": 64, "dtype": "bfloat16"}
IN_4_BITS = {**TRL, "load_in_4bit": True}
DPO = {**IN_4_BITS, "beta": 0.1}
FACTORY = {"model_name_or_path": "a/b", "stage": "sft", "finetuning_type": "lora", "cutoff_len": 64}
HEADS = {"additional_target": "embed_tokens,lm_head", "bf16": True}
AXOLOTL = {"base_model": "a/b", "adapter": "lora", "sequence_len": 64, "bf16": True}
TUNE = {
    "model": {
        "_component_": "torchtune.models.llama3_1.lora_llama3_1_8b",
        "lora_attn_modules": ["q_proj"],
    },
    "tokenizer": {"max_seq_len": 64},
    "enable_activation_checkpointing": False,
}


def read(values: dict[str, Any]) -> UserTraining:
    return finished(draft_of([Document("file.yaml", values)]), dict)


@pytest.mark.parametrize(
    ("values", "found"),
    [
        (TRL, "default"),
        (IN_4_BITS, "bfloat16"),
        ({**IN_4_BITS, "bf16": False, "fp16": True}, "default"),  # the scaler stops at the cast
        (DPO, "default"),  # the rung of DPO is TRL's step, with its cast
        (FACTORY, "default"),
        ({**FACTORY, **HEADS}, "float32"),
        ({**FACTORY, "additional_target": "lm_head", "pure_bf16": True}, "default"),
        ({**FACTORY, "stage": "dpo", "quantization_bit": 4}, "float32"),
        (AXOLOTL, "default"),
        ({**AXOLOTL, "peft_autocast_adapter_dtype": False}, "bfloat16"),
        ({**AXOLOTL, "peft_autocast_adapter_dtype": True}, "default"),
        (
            {**AXOLOTL, "adapter": "qlora", "load_in_4bit": True}
            | {"peft_autocast_adapter_dtype": False},
            "default",
        ),
        ({**TUNE, "dtype": "bf16"}, "bfloat16"),
        ({**TUNE, "dtype": "fp32"}, "default"),
    ],
)
def test_adapters_have_the_dtype_of_their_program(values: dict[str, Any], found: str) -> None:
    training = read(values)
    assert training.config.adapter_dtype == found
    assert training.config.method != "full"


def test_what_no_setting_says_has_a_reason() -> None:
    (assumed,) = [one for one in read(IN_4_BITS).assumed if one.key == "adapter_dtype"]
    assert (assumed.value, assumed.reason) == (
        "bfloat16",
        "TRL casts the adapters of a quantized model",
    )
    said = read({**AXOLOTL, "peft_autocast_adapter_dtype": False})
    assert "adapter_dtype" not in {one.key for one in said.assumed}


def script(line: str) -> UserTraining:
    text = f"""
from transformers import AutoModelForCausalLM, TrainingArguments
from peft import LoraConfig, get_peft_model
model = AutoModelForCausalLM.from_pretrained("a/b", dtype=torch.bfloat16)
{line}
training = TrainingArguments(output_dir="out", per_device_train_batch_size=2)
"""
    return finished(draft_of([read_script("train.py", text)]), dict)


def test_a_script_may_leave_adapters_in_the_dtype_of_the_weights() -> None:
    lora = "LoraConfig(r=8, target_modules='all-linear')"
    found = script(f"model = get_peft_model(model, {lora}, autocast_adapter_dtype=False)")
    assert found.config.adapter_dtype == "bfloat16"
    assert script(f"model = get_peft_model(model, {lora})").config.adapter_dtype == "default"


QLORA = {"method": "qlora", "quantization": "nf4", "kbit_prepare": "none", "micro_batch_size": 1}


@pytest.mark.parametrize(
    ("values", "casts"),
    [
        ({}, ['cast_trained(trainer.model, torch.float32, "lora_")']),
        ({"adapter_dtype": "bfloat16"}, []),
        ({"adapter_dtype": "float32"}, ["cast_trained(trainer.model, torch.float32)"]),
        ({"objective": "dpo"}, []),
        # modules_to_save are in bfloat16 in the rung too
        (
            {"modules_to_save": ("lm_head",)},
            ['cast_trained(trainer.model, torch.float32, "lora_")'],
        ),
        (
            {"modules_to_save": ("lm_head",), "kbit_prepare": "peft"},
            [
                'cast_trained(trainer.model, torch.float32, "lora_")',
                'cast_trained(trainer.model, torch.float32, "modules_to_save")',
            ],
        ),
    ],
)
def test_a_script_for_trl_undoes_only_what_the_rung_has_not(
    values: dict[str, Any], casts: list[str]
) -> None:
    rung = StackRung(TrainConfig(**{**QLORA, **values}), "a rung", "a/b")
    text = export(rung, "trl")
    found = [line.strip() for line in text.splitlines() if line.strip().startswith("cast_trained")]
    assert found == casts
    assert ("def cast_trained" in text) == bool(casts)


def test_a_file_that_cannot_hold_it_says_so() -> None:
    config = TrainConfig(**QLORA)
    (one,) = [
        one for one in lost(config, "trl", settings_of(config, "trl")) if one.key == "adapter_dtype"
    ]
    assert (one.value, one.read, one.reason) == ("default", "bfloat16", "the program decides it")
    axolotl = TrainConfig(method="lora", adapter_dtype="bfloat16", micro_batch_size=1)
    settings = settings_of(axolotl, "axolotl")
    assert settings["peft_autocast_adapter_dtype"] is False
    assert "adapter_dtype" not in {one.key for one in lost(axolotl, "axolotl", settings)}
