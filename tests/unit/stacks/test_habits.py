"""How people write the files of their trainings, found in public examples: none is misread."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from oomdoctor.errors import OomDoctorError
from oomdoctor.records.configuration.config import TrainConfig
from oomdoctor.records.report.user_training import Document, UserTraining
from oomdoctor.stacks.export import export
from oomdoctor.stacks.names.values import names_of
from oomdoctor.stacks.reading.finish import Overrides, finished
from oomdoctor.stacks.reading.merge import draft_of
from oomdoctor.stacks.reading.script import read_script
from oomdoctor.stacks.rung import StackRung
from oomdoctor.system.training_files import read_documents

AXOLOTL = {"base_model": "org/model", "sequence_len": 512, "micro_batch_size": 2}
TRL = {"model_name_or_path": "org/model", "dataset_name": "d", "per_device_train_batch_size": 2}
LLAMA = {"model_name_or_path": "org/model", "stage": "sft", "finetuning_type": "full"}
VISION = {"vision_config": {}, "model_type": "qwen2_5_vl"}
TUNE = {"model": {"_component_": "torchtune.models.llama3_1.lora_llama3_1_8b",
                  "lora_attn_modules": ["q_proj"]}}  # fmt: skip


def read(values: dict[str, Any], model: dict[str, Any] | None = None, **gpus: int) -> UserTraining:
    return finished(draft_of([Document("file", values)]), lambda: model or {}, Overrides(**gpus))


def script(text: str, model: dict[str, Any] | None = None) -> UserTraining:
    document = read_script("train.py", text)
    return finished(draft_of([document]), lambda: model or {}, Overrides())


def reasons(training: UserTraining) -> dict[str, str]:
    return {one.name: one.reason for one in training.not_taken if one.matters}


@pytest.mark.parametrize(
    ("pattern", "names"),
    [
        (r"model.language_model.layers.[\d]+.(mlp|self_attn).(up|q)_proj", ("up_proj", "q_proj")),
        (r".*\.self_attn\.(q|k)_proj|.*\.mlp\.down_proj", ("q_proj", "k_proj", "down_proj")),
        (r"a.(b.(x_proj|y_with_z)|mlp.(shared.)?(gate))", ("x_proj", "y_with_z", "gate")),
        (r"^(?!.*visual).*(?:q_proj|v_proj)$", ("q_proj", "v_proj")),
        (r"encoder\.fc[12]", ("fc1", "fc2")),
        (r".*_proj", None),
        (r".*", None),
        (r"(", None),
    ],
)
def test_the_names_behind_a_pattern(pattern: str, names: tuple[str, ...] | None) -> None:
    assert names_of(pattern) == names


def test_a_pattern_for_the_language_model_leaves_the_vision_encoder_alone() -> None:
    pattern = r"model.language_model.layers.[\d]+.(mlp|self_attn).(up|q)_proj"
    values = AXOLOTL | {"adapter": "lora", "lora_target_modules": pattern, "image_size": [512, 128]}
    found = read(values, VISION).config
    assert (found.lora_targets, found.vision) == (("up_proj", "q_proj"), "frozen")
    assert found.image_size == 256
    text = read(values, {"model_type": "llama"}).config
    assert (text.vision, text.image_size) == ("trained", 0)


def test_the_batch_of_a_step_gives_the_accumulation() -> None:
    assert read(AXOLOTL | {"batch_size": 8}).config.effective_batch_size == 8
    both = AXOLOTL | {"batch_size": 8, "gradient_accumulation_steps": 3}
    assert read(both).config.effective_batch_size == 6


def test_fsdp_of_accelerate_is_the_first_unless_its_file_says_otherwise() -> None:
    launcher = {"compute_environment": "LOCAL_MACHINE", "distributed_type": "FSDP",
                "num_processes": 8, "fsdp_config": {"fsdp_forward_prefetch": True}}  # fmt: skip
    found = read(launcher).config
    assert (found.fsdp_version, found.prefetch) == (1, "forward")
    launcher["fsdp_config"] = {"fsdp_version": 2}
    assert read(launcher).config.fsdp_version == 2
    ddp = {"distributed_type": "MULTI_GPU", "num_processes": 2}
    assert read(ddp).config.sharding == "ddp"


def test_a_recipe_with_a_mixture_of_data_is_one_of_trl() -> None:
    values = {"model_name_or_path": "org/model", "dataset_mixture": {"seed": 0}, "beta": 0.1,
              "loss_type": "sigmoid", "per_device_train_batch_size": 2,
              "use_liger_kernel": True, "packing": True}  # fmt: skip
    found = read(values)
    assert found.files[0].format == "trl"
    assert (found.config.objective, found.config.loss, found.config.packing) == (
        "dpo",
        "default",
        "none",
    )
    assert "TRL pads" in reasons(found)["packing"]
    assert "objective" in {one.key for one in found.assumed}


@pytest.mark.parametrize(
    ("values", "padding"),
    [
        (AXOLOTL | {"pad_to_sequence_len": True}, "max_length"),
        (AXOLOTL | {"pad_to_sequence_len": False}, "none"),
        (AXOLOTL | {"pad_to_sequence_len": True, "sample_packing": True}, "none"),
        # It takes the padding out, so it needs no more than for full rows.
        (AXOLOTL | {"pad_to_sequence_len": True, "flash_attention": True}, "none"),
        (TRL | {"max_length": 512, "pad_to_multiple_of": 512}, "max_length"),
        (TRL | {"max_length": 512, "pad_to_multiple_of": 8}, "longest"),
        (TRL | {"max_length": 512, "pad_to_multiple_of": "auto"}, "none"),
        (TRL | {"max_length": 512, "pad_to_multiple_of": 8, "packing": True}, "none"),
        (TRL | {"max_length": 512}, "none"),
    ],
    ids=str,
)
def test_rows_that_a_file_pads_are_padded(values: dict[str, Any], padding: str) -> None:
    assert read(values).config.padding == padding


@pytest.mark.parametrize("padding", ["longest", "max_length"])
@pytest.mark.parametrize("objective", ["default", "dpo", "reward"])
def test_a_script_that_pads_comes_back(padding: Any, objective: Any) -> None:
    config = TrainConfig(
        padding=padding, objective=objective, micro_batch_size=2, sequence_length=1024
    )
    assert script(export(StackRung(config, "a", "m"), "trl")).config.padding == padding
    for target in ("trainer", "pytorch"):
        with pytest.raises(OomDoctorError) as raised:
            export(StackRung(replace(config, objective="default"), "a", "m"), target)
        assert (f"padding = {padding}" in raised.value.message) and raised.value.hint == (
            "use --to trl"
        )


def test_what_a_rung_cannot_combine_is_left_out_and_named() -> None:
    found = read(
        LLAMA | {"bf16": True, "fp8": True, "fsdp": "full_shard", "per_device_train_batch_size": 1},
        gpus=8,
    )
    assert found.config.fp8 == "none"
    assert "no model yet" in reasons(found)["fp8"]
    zero = {"train_micro_batch_size_per_gpu": 1,
            "zero_optimization": {"stage": 0, "reduce_bucket_size": 5e8}}  # fmt: skip
    assert "bucket" in reasons(read(zero))["zero_optimization.reduce_bucket_size"]


def test_what_means_nothing_in_a_rung_is_named() -> None:
    found = read(LLAMA | {"finetuning_type": "full", "lora_rank": 64})
    assert found.config.lora_rank == 16
    assert reasons(found)["lora_rank"] == 'means nothing with method "full"'


def test_galore_and_apollo_of_llama_factory_are_optimizers() -> None:
    galore = {"use_galore": True, "galore_rank": 64, "galore_layerwise": True, "pure_bf16": True}
    found = read(LLAMA | galore | {"per_device_train_batch_size": 1}).config
    assert (found.optimizer, found.optimizer_rank) == ("galore_adamw_layerwise", 64)
    apollo = {"use_apollo": True, "apollo_rank": 8, "optim": "adamw_8bit"}
    assert read(LLAMA | apollo).config.optimizer == "apollo_adamw"


def test_files_of_the_new_engine_of_llama_factory_are_read() -> None:
    values = {
        "model": "org/model",
        "model_class": "llm",
        "peft_config": {"name": "lora", "r": 4, "target_modules": "all"},
        "dist_config": {"name": "fsdp2"},
        "micro_batch_size": 3,
        "cutoff_len": 99,
    }
    found = read(values, gpus=2)
    assert found.model == "org/model"
    config = found.config
    assert (config.method, config.lora_rank, config.lora_targets) == ("lora", 4, "all-linear")
    assert (config.micro_batch_size, config.sequence_length) == (3, 99)
    assert (config.sharding, config.fsdp_version) == ("fsdp", 2)
    assert read({"model": "m", "model_class": "llm"}).config.method == "full"


def test_images_of_llama_factory_have_their_most_pixels() -> None:
    values = LLAMA | {"image_max_pixels": 262144}
    found = read(values, VISION).config
    assert (found.image_size, found.vision) == (512, "frozen")
    tuned = read(values | {"freeze_vision_tower": False}, VISION)
    assert tuned.config.vision == "trained"
    assert read(LLAMA, {"model_type": "llama"}).config.vision == "trained"
    assert read(LLAMA).config.vision == "trained"


def test_torchtune_tells_its_recipe_by_the_loss() -> None:
    dpo = read(TUNE | {"loss": {"_component_": "torchtune.rlhf.loss.DPOLoss"}})
    assert dpo.config.objective == "dpo"
    other = read(TUNE | {"loss": {"_component_": "torchtune.rlhf.loss.PPOLoss"}})
    assert "a plain step is taken" in reasons(other)["loss._component_"]


def test_a_file_may_be_named_from_the_root_of_a_repository(tmp_path: Path) -> None:
    (tmp_path / "deepspeed_configs").mkdir()
    (tmp_path / "deepspeed_configs/zero3.json").write_text(
        json.dumps({"zero_optimization": {"stage": 3}})
    )
    inner = tmp_path / "examples" / "llama"
    inner.mkdir(parents=True)
    (inner / "train.yaml").write_text(
        "base_model: m\nsequence_len: 8\ndeepspeed: deepspeed_configs/zero3.json\n"
    )
    assert len(read_documents([str(inner / "train.yaml")])) == 2


UNSLOTH = """
from unsloth import FastVisionModel, is_bf16_supported
from trl import SFTTrainer, SFTConfig
model, tokenizer = FastVisionModel.from_pretrained("org/vl")
model = FastVisionModel.get_peft_model(model, finetune_vision_layers=False)
trainer = SFTTrainer(model=model, args=SFTConfig(
    per_device_train_batch_size=2, gradient_accumulation_steps=4, max_length=1024,
    fp16=not is_bf16_supported(), bf16=is_bf16_supported()))
model, tokenizer = FastVisionModel.from_pretrained("lora_model")
"""


def test_unsloths_models_have_their_own_defaults() -> None:
    found = script(UNSLOTH, VISION)
    config = found.config
    assert found.files[0].format == "unsloth"
    assert (config.method, config.quantization, config.lora_rank) == ("qlora", "nf4", 16)
    assert (config.autocast_dtype, config.vision) == ("bfloat16", "frozen")
    assert config.effective_batch_size == 8
    assert config.lora_targets == "all-linear"  # not the few of peft
    assert not reasons(found)
    whole = UNSLOTH.replace('"org/vl"', '"org/vl", full_finetuning=True')
    assert script(whole.replace("model = FastVisionModel.get", "other.get")).config.method == "full"


GRPO = """
from trl import GRPOConfig, GRPOTrainer
args = GRPOConfig(per_device_train_batch_size=8, num_generations=4, max_completion_length=100,
                  max_prompt_length=50, beta=0.0)
GRPOTrainer("org/model", args=args)
"""


def test_the_objective_is_that_of_the_configuration_of_trl() -> None:
    found = script(GRPO).config
    assert (found.objective, found.num_generations, found.completion_length) == ("grpo", 4, 100)
    assert (found.sequence_length, found.reference) == (150, "default")
    orpo = script("from trl import ORPOConfig\nORPOConfig(per_device_train_batch_size=2, beta=0.1)")
    assert orpo.config.objective == "default"
    assert "plain step" in reasons(orpo)["ORPOConfig"]


SFT = """
import torch
from transformers import AutoModelForCausalLM
from trl import SFTConfig, SFTTrainer
model = AutoModelForCausalLM.from_pretrained("org/model", dtype=torch.bfloat16)
args = SFTConfig(per_device_train_batch_size=2, max_length=512{more})
trainer = {trainer}(model, args=args)
"""


@pytest.mark.parametrize(
    ("more", "trainer", "library", "loss"),
    [
        ("", "SFTTrainer", "trl 1.16.0", "chunked"),
        (', loss_type="nll"', "SFTTrainer", "trl 1.16.0", "chunked"),
        (', loss_type="nll"', "SFTTrainer", "trl 1.15.0", "default"),
        (', loss_type="chunked_nll"', "SFTTrainer", None, "chunked"),
        ("", "OwnTrainer", "trl 1.16.0", "default"),
        (", use_liger_kernel=True", "SFTTrainer", "trl 1.16.0", "liger"),
    ],
)
def test_the_loss_of_a_script_is_that_of_the_installed_trl(
    more: str, trainer: str, library: str | None, loss: str
) -> None:
    document = read_script("sft.py", SFT.format(more=more, trainer=trainer))
    found = finished(draft_of([replace(document, library=library)]), dict, Overrides())
    assert found.config.loss == loss


def test_a_script_of_a_command_line_says_what_to_pass() -> None:
    text = "from trl import TrlParser\nargs = TrlParser(SFTConfig).parse_args_and_config()\n"
    with pytest.raises(OomDoctorError) as raised:
        read_script("sft.py", text)
    assert "--from 'sft.py --per_device_train_batch_size 4 ...'" in (raised.value.hint or "")
    with pytest.raises(OomDoctorError) as raised:
        read_script("dpo.py", text.replace("SFTConfig", "DPOConfig"))
    assert "--from trl:args.yaml" in (raised.value.hint or "")


@pytest.mark.parametrize(
    ("parser", "values", "loss"),
    [
        ("trl 1.16.0", {}, "chunked"),
        ("trl 2.0.1", {"loss_type": "nll"}, "chunked"),
        ("trl 1.15.2", {}, "default"),
        ("trl 1.16.0", {"loss_type": "dft"}, "default"),
        ("trl 1.16.0", {"beta": 0.1}, "default"),
        ("trl 1.16.0", {"use_liger_kernel": True}, "liger"),
        (None, {}, "default"),
    ],
)
def test_the_loss_is_that_of_the_installed_trl(
    parser: str | None, values: dict[str, Any], loss: str
) -> None:
    document = Document("sft.yaml", TRL | values, asked="trl", parser=parser)
    found = finished(draft_of([document]), dict, Overrides())
    assert found.config.loss == loss
    assert ("loss" in {one.key for one in found.assumed}) == (loss == "chunked")
    images = finished(draft_of([document]), lambda: VISION, Overrides()).config
    assert images.loss == ("default" if loss == "chunked" else loss)


def test_a_typed_length_is_that_of_a_prompt_and_a_completion() -> None:
    grpo = {**TRL, "num_generations": 2, "max_completion_length": 256, "loss_type": "grpo"}
    assert read(grpo).config.sequence_length == 512  # no file limits a prompt
    config = read(grpo, sequence_length=300).config
    assert (config.sequence_length, config.completion_length) == (300, 256)
