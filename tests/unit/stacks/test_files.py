"""Files of the kind that people have, and the rungs that they are."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from oomdoctor.records.report.user_training import UserTraining
from oomdoctor.stacks.reading.finish import Overrides, finished
from oomdoctor.stacks.reading.merge import draft_of
from oomdoctor.system.training_files import read_documents

FILES = Path(__file__).parents[2] / "data" / "stacks" / "files"
QWEN = {"model_type": "qwen2", "torch_dtype": "bfloat16", "num_hidden_layers": 24}


def read(*names: str, **options: int) -> UserTraining:
    documents = read_documents([str(FILES / name) for name in names])
    return finished(draft_of(documents), lambda: QWEN, Overrides(**options))


CASES: dict[tuple[str, ...], tuple[str, dict[str, Any]]] = {
    ("trainer.yaml",): (
        "trainer",
        {"method": "full", "weights_dtype": "float32", "autocast_dtype": "bfloat16",
         "optimizer": "adamw_torch", "activation_checkpointing": "full", "micro_batch_size": 2,
         "effective_batch_size": 8, "sequence_length": 1024},
    ),
    ("sft.yaml",): (
        "trl",
        {"method": "qlora", "quantization": "nf4", "double_quant": True, "lora_rank": 32,
         "lora_alpha": 64, "lora_targets": ("q_proj", "k_proj", "v_proj", "o_proj"),
         "packing": "packed", "attention": "flash_attention_2", "optimizer": "paged_adamw_8bit",
         "sequence_length": 4096, "micro_batch_size": 8, "effective_batch_size": 16,
         "weights_dtype": "bfloat16", "autocast_dtype": "bfloat16"},
    ),
    ("sft.yaml", "accelerate_fsdp2.yaml"): (
        "trl",
        {"sharding": "fsdp", "offload": "parameters", "world_size": 4, "fsdp_version": 2,
         "effective_batch_size": 64, "activation_checkpointing": "full"},
    ),
    ("trainer.yaml", "accelerate_zero3.yaml"): (
        "trainer",
        {"sharding": "zero3", "world_size": 8, "weights_dtype": "bfloat16",
         "autocast_dtype": "none", "effective_batch_size": 64, "offload": "none"},
    ),
    ("axolotl_qlora.yml",): (
        "axolotl",
        {"method": "qlora", "quantization": "nf4", "quant_storage": "bfloat16",
         "double_quant": True, "lora_rank": 32, "lora_alpha": 16, "lora_dropout": 0.05,
         "lora_targets": "all-linear", "optimizer": "paged_adamw_32bit", "loss": "liger",
         "attention": "flash_attention_2", "packing": "packed", "sequence_length": 4096,
         "micro_batch_size": 2, "effective_batch_size": 8, "weights_dtype": "bfloat16",
         "autocast_dtype": "bfloat16", "activation_checkpointing": "full"},
    ),
    ("llamafactory_lora.yaml",): (
        "llama-factory",
        {"method": "lora", "lora_rank": 8, "lora_alpha": 16, "lora_targets": "all-linear",
         "weights_dtype": "bfloat16", "autocast_dtype": "bfloat16", "micro_batch_size": 1,
         "effective_batch_size": 8, "activation_checkpointing": "full",
         "attention": "flash_attention_2"},
    ),
    ("torchtune_lora.yaml",): (
        "torchtune",
        {"method": "lora", "lora_rank": 32, "lora_alpha": 64, "optimizer": "adamw_torch_fused",
         "lora_targets": ("q_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"),
         "weights_dtype": "bfloat16", "autocast_dtype": "none", "micro_batch_size": 4,
         "effective_batch_size": 32, "sequence_length": 2048,
         "activation_checkpointing": "full"},
    ),
}  # fmt: skip


@pytest.mark.parametrize("names", CASES, ids=" ".join)
def test_a_file_is_read_as_the_rung_that_it_is(names: tuple[str, ...]) -> None:
    program, wanted = CASES[names]
    training = read(*names)
    assert training.files[0].format == program
    got = {key: getattr(training.config, key) for key in wanted}
    assert got == wanted
    assert training.model in ("Qwen/Qwen2.5-0.5B", "Qwen/Qwen2.5-0.5B-Instruct")


@pytest.mark.parametrize(
    ("text", "wanted"),
    [
        ("trl:beta: 0.1\nmax_length: 1024", {"objective": "dpo", "reference": "default"}),
        ("trl:beta: 0.1\nprecompute_ref_log_probs: true",
         {"objective": "dpo", "reference": "precomputed"}),
        ("trl:num_generations: 4\nmax_completion_length: 256\nmax_prompt_length: 512\nbeta: 0.04",
         {"objective": "grpo", "num_generations": 4, "completion_length": 256,
          "sequence_length": 768, "reference": "kl"}),
        ("trl:num_generations: 4\nuse_vllm: true", {"vllm_gpu_memory_utilization": 0.3}),
        ("trl:num_generations: 4\nuse_vllm: true\nvllm_mode: colocate\n"
         "vllm_gpu_memory_utilization: 0.45", {"vllm_gpu_memory_utilization": 0.45}),
        ("trl:num_generations: 4\nuse_vllm: true\nvllm_mode: server\n"
         "vllm_gpu_memory_utilization: 0.45", {"vllm_gpu_memory_utilization": 0.0}),
        ("trl:num_generations: 4\nuse_vllm: true\nvllm_enable_sleep_mode: true",
         {"vllm_gpu_memory_utilization": 0.3, "vllm_enable_sleep_mode": True}),
        ("trl:num_generations: 4\nvllm_gpu_memory_utilization: 0.45",
         {"vllm_gpu_memory_utilization": 0.0}),
        ("trl:center_rewards_coefficient: 0.01", {"objective": "reward"}),
        ("axolotl:base_model: m\nsequence_len: 512\nrl: dpo", {"objective": "dpo"}),
        ("axolotl:base_model: m\nreward_model: true", {"objective": "reward"}),
        ("llama-factory:model_name_or_path: m\nstage: dpo", {"objective": "dpo"}),
        ("llama-factory:stage: rm", {"objective": "reward"}),
        ("torchtune:batch_size: 4\noptimizer_in_bwd: true", {"optimizer_in_backward": True}),
        ("trl:use_peft: true\nuse_dora: true\nlora_modules_to_save: [lm_head]",
         {"use_dora": True, "modules_to_save": ("lm_head",)}),
    ],
)  # fmt: skip
def test_objectives_and_techniques_are_read(
    tmp_path: Path, text: str, wanted: dict[str, Any]
) -> None:
    program, _, settings = text.partition(":")
    file = tmp_path / "train.yaml"
    file.write_text(settings + "\n")
    documents = read_documents([f"{program}:{file}"])
    config = finished(draft_of(documents), lambda: QWEN).config
    assert {key: getattr(config, key) for key in wanted} == wanted


def test_every_line_is_taken_or_listed() -> None:
    for names in CASES:
        training = read(*names)
        for document in read_documents([str(FILES / name) for name in names]):
            taken = {(one.file, one.name) for one in (*training.said, *training.not_taken)}
            heads = {name.partition(".")[0] for file, name in taken if file == document.path}
            # A setting without a value, or whose value is the default, decides nothing.
            missing = {
                name
                for name, value in document.values.items()
                if name not in heads and value not in (None, False, "bnb")
            }
            assert missing <= {"stage", "plugins", "gradient_checkpointing_kwargs"}, missing


def test_a_setting_that_is_off_does_not_matter() -> None:
    left = {one.name: one for one in read("axolotl_qlora.yml").not_taken}
    assert (left["group_by_length"].reason, left["group_by_length"].matters) == ("is off", False)
    assert "pad_to_sequence_len" not in left


def test_auto_is_filled_by_the_other_file() -> None:
    training = read("trainer.yaml", "ds_zero2_offload.json", gpus=2)
    config = training.config
    assert (config.sharding, config.offload, config.world_size) == ("zero2", "optimizer", 2)
    assert (config.micro_batch_size, config.effective_batch_size) == (2, 16)
    assert config.bucket_elements == 200_000_000
    assert config.optimizer == "adamw_torch"


def test_fsdp_of_a_json_file_needs_gpus() -> None:
    config = read("trainer.json", gpus=4).config
    assert (config.sharding, config.fsdp_version, config.world_size) == ("fsdp", 1, 4)
    assert (config.optimizer, config.autocast_dtype) == ("adafactor", "float16")
    assert config.sequence_length == 2048


def test_lines_are_those_of_the_file() -> None:
    training = read("axolotl_qlora.yml")
    said = {one.name: one.line for one in training.said}
    text = (FILES / "axolotl_qlora.yml").read_text().splitlines()
    assert text[said["lora_r"] - 1] == "lora_r: 32"
    assert text[said["base_model"] - 1].startswith("base_model:")


def test_peft_adapts_its_own_modules_if_the_file_names_none(tmp_path: Path) -> None:
    file = tmp_path / "sft.yaml"
    file.write_text("model_name_or_path: m\nuse_peft: true\nmax_length: 128\n")
    training = finished(draft_of(read_documents([str(file)])), lambda: QWEN)
    assert training.config.lora_targets == ("q_proj", "v_proj")
    assumed = {one.key: one.reason for one in training.assumed}
    assert assumed["lora_targets"] == "what peft adapts in this architecture"
