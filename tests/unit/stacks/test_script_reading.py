"""Settings are read from training scripts by their text: our own exports, and those of users."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from export_rungs import OF_TRAINERS, OF_TRL, RUNGS

from oomdoctor.errors import ExitCode, OomDoctorError
from oomdoctor.records.configuration.config import TrainConfig
from oomdoctor.records.configuration.keys import settled
from oomdoctor.records.report.user_training import Document, UserTraining
from oomdoctor.stacks.export import comparable, export
from oomdoctor.stacks.reading.finish import Overrides, finished
from oomdoctor.stacks.reading.merge import draft_of
from oomdoctor.stacks.reading.script import read_script
from oomdoctor.stacks.rung import StackRung

DOCS = Path(__file__).parents[3] / "docs"


def training_of(text: str, **given: Any) -> UserTraining:
    draft = draft_of([read_script("train.py", text)])
    return finished(draft, dict, Overrides(**given))


ALL = RUNGS | OF_TRL | OF_TRAINERS
SAYING = (
    *((name, target) for name in RUNGS for target in ("trainer", "trl", "pytorch")),
    *((name, "trl") for name in OF_TRL),
    *((name, target) for name in OF_TRAINERS for target in ("trainer", "trl")),
)


@pytest.mark.parametrize(("name", "target"), SAYING)
def test_what_is_exported_is_read_back(name: str, target: str) -> None:
    base: dict[str, Any] = {"micro_batch_size": 2, "effective_batch_size": 4}
    config = TrainConfig(**(base | ALL[name]))
    text = export(StackRung(config, "a", "some/model", origin=("Measured.",)), target)
    found = training_of(text)
    assert found.model == "some/model"
    unread = [one.name for one in found.not_taken if one.matters and "expression" in one.reason]
    assert unread == []
    if config.method != "qlora":
        config = replace(config, kbit_prepare=found.config.kbit_prepare)
    assert comparable(found.config) == comparable(config)


@pytest.mark.parametrize(
    "values",
    [
        {"sharding": "zero2", "bucket_elements": 1000, "weights_dtype": "bfloat16"},
        {"sharding": "zero3", "offload": "parameters"},
        {"sharding": "fsdp", "activation_checkpointing": "full"},
        {"sharding": "fsdp_grad_op", "weights_dtype": "float32", "autocast_dtype": "bfloat16"},
        {"sharding": "ddp"},
    ],
)
@pytest.mark.parametrize("target", ["trainer", "trl"])
def test_engines_are_read_back(values: dict[str, Any], target: str) -> None:
    config = TrainConfig(
        **{"micro_batch_size": 2, "effective_batch_size": 16, "world_size": 4, **values}
    )
    text = export(StackRung(config, "a", "some/model", origin=("Measured.",)), target)
    assert training_of(text, gpus=4).config == config


def test_the_loss_of_trl_is_left_on_and_read_back() -> None:
    config = TrainConfig(micro_batch_size=2, effective_batch_size=4, loss="chunked")
    text = export(StackRung(config, "a", "some/model", origin=("Measured.",)), "trl")
    assert "SFTTrainer(" in text and "ModelLossTrainer" not in text
    found = training_of(text).config
    assert found == replace(config, kbit_prepare=found.kbit_prepare)
    plain = replace(config, loss="default")
    text = export(StackRung(plain, "a", "some/model", origin=("Measured.",)), "trl")
    assert "ModelLossTrainer(" in text and "loss_type" not in text


USERS = """
import argparse
import os
from transformers import AutoModelForCausalLM, TrainingArguments, BitsAndBytesConfig
from peft import LoraConfig
import torch

RANK = 8 * 2
p = argparse.ArgumentParser()
p.add_argument("--batch-size", type=int, default=3)
args = p.parse_args()
quant = BitsAndBytesConfig(load_in_4bit=True, bnb_4bit_quant_type="nf4")
model = AutoModelForCausalLM.from_pretrained(
    "org/base", torch_dtype=torch.bfloat16, quantization_config=quant
)
peft_config = LoraConfig(r=RANK, target_modules=["q_proj", "v_proj"], lora_dropout=0.1)
training = TrainingArguments(
    output_dir="out",
    per_device_train_batch_size=args.batch_size,
    gradient_accumulation_steps=int(os.environ["STEPS"]),
    optim="paged_adamw_8bit",
    bf16=torch.cuda.is_bf16_supported(),
    fp16=torch.cuda.get_device_capability()[0] < 8,
    gradient_checkpointing=True,
)
"""


def test_a_users_script_is_read_and_its_expressions_are_listed() -> None:
    found = training_of(USERS)
    config = found.config
    assert (found.model, config.method, config.quantization) == ("org/base", "qlora", "nf4")
    assert (config.lora_rank, config.lora_alpha, config.lora_dropout) == (16, 8, 0.1)
    assert config.lora_targets == ("q_proj", "v_proj")
    assert (config.micro_batch_size, config.optimizer) == (3, "paged_adamw_8bit")
    assert config.activation_checkpointing == "full" and not config.double_quant
    listed = {one.name: one.value for one in found.not_taken if "expression" in one.reason}
    assert listed == {
        "gradient_accumulation_steps": "int(os.environ['STEPS'])",
        "fp16": "torch.cuda.get_device_capability()[0] < 8",
    }
    said = {one.key: one.line for one in found.said}
    assert said["lora_rank"] == 8 and said["micro_batch_size"] == 10


def test_a_name_that_is_bound_twice_is_not_read() -> None:
    text = "B = 2\nB = 4\nTrainingArguments('o', per_device_train_batch_size=B, optim='sgd')\n"
    found = training_of(text)
    assert found.config.micro_batch_size == 8  # the default
    assert [one.name for one in found.not_taken] == ["per_device_train_batch_size"]


def test_names_that_are_bound_together_are_read() -> None:
    text = (DOCS / "examples" / "train.py").read_text(encoding="utf-8")
    assert 'MODEL, LENGTH = "Qwen/Qwen2.5-1.5B", 2048' in text
    found = training_of(text)
    assert (found.model, found.config.micro_batch_size) == ("Qwen/Qwen2.5-1.5B", 4)
    two = "(BATCH, [STEPS, *_]), SEED = (3, [7, 8, 9]), 1"
    script = (
        f"{two}\nTrainingArguments(per_device_train_batch_size=BATCH, max_steps=STEPS, seed=SEED)"
    )
    document = read_script("train.py", script)
    assert document.values["per_device_train_batch_size"] == 3
    assert document.values["seed"] == 1
    assert document.values.get("max_steps") != 7  # which part a star takes is left to Python


@pytest.mark.parametrize(
    ("line", "on"),
    [
        ("torch.set_float32_matmul_precision('high')", True),
        ("torch.set_float32_matmul_precision(precision='medium')", True),
        ("torch.set_float32_matmul_precision('highest')", False),
        ("torch.backends.cuda.matmul.allow_tf32 = True", True),
        ("torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = True", True),
        ("torch.backends.cuda.matmul.allow_tf32 = False", False),
        ("torch.backends.cuda.matmul.fp32_precision = 'tf32'", True),
        ("torch.backends.cuda.matmul.fp32_precision = 'ieee'", False),
        ("torch.backends.fp32_precision = 'tf32'", True),
        ("torch.backends.cudnn.allow_tf32 = True", False),  # convolutions alone
        ("torch.backends.cudnn.conv.fp32_precision = 'tf32'", False),
        ("TrainingArguments('o', tf32=True)", True),
    ],
)
def test_tf32_of_a_script_is_read(line: str, on: bool) -> None:
    loop = f"import torch\n{line}\nmodel = AutoModelForCausalLM.from_pretrained('org/base')\n"
    found = training_of(loop)
    assert found.config.tf32 is on
    assert [one for one in found.not_taken if one.matters] == []
    by_trainer = training_of(loop + "TrainingArguments('o', optim='sgd')\n")
    assert by_trainer.config.tf32 is on


def test_tf32_that_only_running_would_tell_is_listed() -> None:
    text = (
        "torch.set_float32_matmul_precision(os.environ['PRECISION'])\n"
        "model = AutoModelForCausalLM.from_pretrained('org/base')\n"
    )
    found = training_of(text)
    assert not found.config.tf32
    (unread,) = (one for one in found.not_taken if "expression" in one.reason)
    assert (unread.name, unread.line) == ("float32_matmul_precision", 1)


def test_unsloth_scripts_are_read() -> None:
    found = training_of(
        "model, t = FastLanguageModel.from_pretrained(model_name='u/m', max_seq_length=512,"
        " load_in_4bit=True, dtype=None)\n"
        "model = FastLanguageModel.get_peft_model(model, r=32, lora_alpha=64,"
        " target_modules=['q_proj'], use_gradient_checkpointing='unsloth')\n"
        "SFTTrainer(model=model, args=SFTConfig(per_device_train_batch_size=4))\n"
    )
    config = found.config
    assert (config.method, config.lora_rank, config.sequence_length) == ("qlora", 32, 512)
    assert config.activation_checkpointing == "offload"


@pytest.mark.parametrize(
    "values",
    [
        {"method": "qlora", "quantization": "nf4", "activation_checkpointing": "full"},
        {"method": "lora", "activation_checkpointing": "offload", "lora_targets": ("q_proj",)},
        {"method": "full", "optimizer": "adamw_bnb_8bit"},
    ],
)
def test_exports_for_unsloth_are_read_back(values: dict[str, Any]) -> None:
    sizes = {"micro_batch_size": 2, "effective_batch_size": 4, "sequence_length": 512}
    config = TrainConfig(**sizes, **values)
    text = export(StackRung(config, "a", "some/model", origin=("Measured.",)), "unsloth")
    found = training_of(text).config
    config = replace(config, library="unsloth", double_quant=True)
    assert found == settled(replace(config, kbit_prepare=found.kbit_prepare))


@pytest.mark.parametrize(
    ("text", "words"),
    [("def (", "train.py:1: not Python"), ("print('hello')", "no training settings")],
)
def test_what_is_no_training_script_is_refused(text: str, words: str) -> None:
    with pytest.raises(OomDoctorError, match=words):
        training_of(text)


def test_nothing_of_a_script_runs(tmp_path: Any) -> None:
    mark = tmp_path / "ran"
    text = f"open({str(mark)!r}, 'w')\nTrainingArguments('o', optim='sgd')\n"
    assert training_of(text).config.optimizer == "sgd"
    assert not mark.exists()


USERS_GRPO = """
from trl import GRPOConfig, GRPOTrainer
config = GRPOConfig("out", num_generations=4, per_device_train_batch_size=4, beta=0.1,
                    max_completion_length=256)
GRPOTrainer("org/base", reward_funcs=score, args=config, train_dataset=data)
"""


def test_a_users_script_for_grpo_is_read() -> None:
    found = training_of(USERS_GRPO)
    config = found.config
    assert (found.model, config.weights_dtype) == ("org/base", "float32")  # as TRL loads it
    assert (config.objective, config.reference, config.num_generations) == ("grpo", "kl", 4)
    assert (config.completion_length, config.sequence_length) == (256, 512)


def test_the_unread_of_an_export_for_trl_changes_no_memory() -> None:
    for name in OF_TRL:
        config = TrainConfig(**({"micro_batch_size": 2, "effective_batch_size": 4} | OF_TRL[name]))
        rung = StackRung(config, "a", "some/model", revision="abc", trust_remote_code=True)
        unread = {one.name for one in training_of(export(rung, "trl")).not_taken if one.matters}
        assert unread <= {"trust_remote_code"}, name


@pytest.mark.parametrize(
    ("parser", "kind", "program"),
    [
        ("HfArgumentParser((ModelArguments, TrainingArguments))", "TrainingArguments", "trainer"),
        ("TrlParser((ScriptArguments, SFTConfig, ModelConfig))", "SFTConfig", "trl"),
    ],
)
def test_arguments_of_the_command_line_are_asked_for(parser: str, kind: str, program: str) -> None:
    text = (
        f"parser = {parser}\nmodel_args, training_args = parser.parse_args_into_dataclasses()\n"
        "model = AutoModelForCausalLM.from_pretrained(model_args.name, use_cache=False)\n"
    )
    with pytest.raises(OomDoctorError) as caught:
        read_script("train.py", text)
    assert caught.value.exit_code == ExitCode.USAGE
    assert f"{kind} comes from the command line of the script" in caught.value.message
    assert "--from 'train.py --per_device_train_batch_size 4 ...'" in (caught.value.hint or "")
    typed = Document("train.py (command line)", {"max_length": 64})
    assert read_script("train.py", text, command=typed).asked == program


def test_arguments_that_the_script_makes_itself_are_read() -> None:
    text = (
        "(script_args,) = HfArgumentParser(ScriptArguments).parse_args_into_dataclasses()\n"
        "args = SFTConfig(per_device_train_batch_size=4)\n"
    )
    assert read_script("train.py", text).values["per_device_train_batch_size"] == 4
