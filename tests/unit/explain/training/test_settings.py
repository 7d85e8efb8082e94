"""What a training's settings are, whatever file, log or traceback tells them."""

from __future__ import annotations

from typing import Any

import pytest
from explain_make import ADAM, LAYER, llama

from oomdoctor.explain.training.known import Given, Setup, setup_of
from oomdoctor.explain.training.told import roles_of
from oomdoctor.records.report.diagnosis import Frame


def _read(settings: dict[str, Any]) -> Setup:
    return setup_of(Given(settings=settings, settings_source="train.yaml"), {})


def test_trainer_arguments() -> None:
    setup = _read(
        {
            "per_device_train_batch_size": 4,
            "gradient_accumulation_steps": 8,
            "gradient_checkpointing": True,
            "bf16": True,
            "optim": "paged_adamw_8bit",
            "max_length": 2048,
        }
    )
    assert (
        setup.values.get("micro_batch_size"),
        setup.values.get("accumulation_steps"),
        setup.values.get("sequence_length"),
    ) == (4, 8, 2048)
    assert setup.values.get("activation_checkpointing") == "full"
    assert (setup.values.get("autocast_dtype"), setup.values.get("optimizer")) == (
        "bfloat16",
        "paged_adamw_8bit",
    )
    assert setup.origins["optimizer"] == "train.yaml"


def test_deepspeed_file() -> None:
    setup = _read(
        {
            "train_micro_batch_size_per_gpu": 2,
            "zero_optimization": {"stage": 3, "offload_optimizer": {"device": "cpu"}},
            "bf16": {"enabled": True},
            "optimizer": {"type": "AdamW", "params": {"lr": "auto"}},
        }
    )
    assert (
        setup.values.get("micro_batch_size"),
        setup.values.get("sharding"),
        setup.values.get("offload"),
    ) == (2, "zero3", "optimizer")
    assert (setup.values.get("autocast_dtype"), setup.values.get("optimizer")) == (
        "bfloat16",
        "adamw_torch",
    )
    assert setup.values.get("zero_stage") == 3


def test_accelerate_file() -> None:
    setup = _read(
        {
            "distributed_type": "FSDP",
            "num_processes": 8,
            "mixed_precision": "bf16",
            "fsdp_config": {"fsdp_activation_checkpointing": True, "fsdp_offload_params": False},
        }
    )
    assert (setup.values.get("sharding"), setup.values.get("world_size")) == ("fsdp", 8)
    assert setup.values.get("activation_checkpointing") == "full"
    assert (setup.values.get("offload"), setup.values.get("zero_stage")) == ("none", None)


def test_axolotl_file() -> None:
    setup = _read(
        {
            "base_model": "meta-llama/Llama-3.1-8B",
            "adapter": "qlora",
            "load_in_4bit": True,
            "micro_batch_size": 1,
            "sequence_len": 4096,
            "flash_attention": True,
            "sample_packing": True,
            "lora_r": 32,
        }
    )
    assert (setup.values.get("model"), setup.values.get("method")) == (
        "meta-llama/Llama-3.1-8B",
        "qlora",
    )
    assert (
        setup.values.get("micro_batch_size"),
        setup.values.get("sequence_length"),
        setup.values.get("lora_rank"),
    ) == (1, 4096, 32)
    assert (setup.values.get("attention"), setup.values.get("packing")) == (
        "flash_attention_2",
        "packed",
    )


def test_llama_factory_file() -> None:
    setup = _read(
        {
            "model_name_or_path": "Qwen/Qwen2.5-7B",
            "finetuning_type": "lora",
            "quantization_bit": 4,
            "cutoff_len": 1024,
            "flash_attn": "fa2",
            "enable_liger_kernel": True,
            "deepspeed": "examples/deepspeed/ds_z3_config.json",
        }
    )
    assert (setup.values.get("method"), setup.values.get("quantization")) == ("qlora", "nf4")
    assert (setup.values.get("sequence_length"), setup.values.get("attention")) == (
        1024,
        "flash_attention_2",
    )
    assert (setup.values.get("loss"), setup.values.get("sharding")) == ("liger", "zero3")


def test_torchtune_file() -> None:
    setup = _read(
        {
            "model": {"_component_": "torchtune.models.llama3_1.lora_llama3_1_8b", "lora_rank": 64},
            "tokenizer": {"max_seq_len": 2048},
            "optimizer": {"_component_": "bitsandbytes.optim.PagedAdamW8bit"},
            "batch_size": 2,
            "dtype": "bf16",
            "enable_activation_checkpointing": True,
        }
    )
    assert (setup.values.get("model"), setup.values.get("method")) == (
        "meta-llama/Meta-Llama-3.1-8B-Instruct",
        "lora",
    )
    assert (
        setup.values.get("micro_batch_size"),
        setup.values.get("sequence_length"),
        setup.values.get("lora_rank"),
    ) == (2, 2048, 64)
    assert (setup.values.get("optimizer"), setup.values.get("activation_checkpointing")) == (
        "paged_adamw_8bit",
        "full",
    )
    assert (setup.values.get("weights_dtype"), setup.values.get("autocast_dtype")) == (
        "bfloat16",
        "none",
    )


@pytest.mark.parametrize(
    ("settings", "dtypes"),
    [
        ({"base_model": "a/b", "bf16": "auto"}, ("bfloat16", "bfloat16")),
        ({"base_model": "a/b", "bf16": False, "float32": True}, ("float32", None)),
        ({"base_model": "a/b"}, (None, None)),
        ({"stage": "sft", "finetuning_type": "full", "bf16": True}, ("float32", "bfloat16")),
        ({"stage": "sft", "finetuning_type": "lora", "bf16": True}, ("bfloat16", "bfloat16")),
        ({"stage": "sft", "bf16": True}, (None, "bfloat16")),
        ({"stage": "sft", "pure_bf16": True}, ("bfloat16", "none")),
        ({"output_dir": "out", "bf16": False, "fp16": False}, (None, None)),
        ({"num_processes": 1, "mixed_precision": "no"}, (None, "none")),
    ],
)
def test_dtypes_by_the_rules_of_each_program(
    settings: dict[str, Any], dtypes: tuple[str | None, str | None]
) -> None:
    setup = _read(settings)
    assert (setup.values.get("weights_dtype"), setup.values.get("autocast_dtype")) == dtypes


def test_a_name_means_what_it_means_in_its_own_program() -> None:
    assert _read({"batch_size": 64}).values.get("micro_batch_size") == 64
    assert _read({"base_model": "a/b", "batch_size": 64}).values.get("micro_batch_size") is None


def test_a_program_that_is_not_said_to_use_an_adapter_has_none() -> None:
    assert _read({"use_peft": False, "lora_r": 16, "max_length": 64}).values.get("method") == "full"
    assert _read({"lora_r": 16}).values.get("method") == "lora"
    assert _read({"load_in_4bit": True}).values.get("method") == "qlora"


def test_an_optimizer_that_no_rung_has_is_not_taken_for_another() -> None:
    assert _read({"optim": "muon"}).values.get("optimizer") == "muon"


def test_a_file_that_contains_itself_does_no_harm() -> None:
    nested: dict[str, Any] = {"max_length": 64}
    nested["again"] = nested
    assert _read(nested).values.get("sequence_length") == 64


@pytest.mark.parametrize("value", ["auto", None, "", 0, -3, 1e30, True])
def test_what_is_no_length_is_unknown(value: object) -> None:
    assert _read({"max_length": value}).values.get("sequence_length") is None


def test_flags_come_before_files_and_files_before_the_log() -> None:
    given = Given(
        model=llama(),
        micro_batch_size=1,
        settings={"per_device_train_batch_size": 4, "max_length": 512},
        settings_source="a.json",
    )
    setup = setup_of(given, {"per_device_train_batch_size": 8, "max_length": 64, "optim": "sgd"})
    assert (
        setup.values.get("micro_batch_size"),
        setup.values.get("sequence_length"),
        setup.values.get("optimizer"),
    ) == (1, 512, "sgd")
    assert setup.origins["micro_batch_size"] == "--micro-batch"
    assert setup.origins["sequence_length"] == "a.json"
    assert setup.origins["optimizer"] == "the log"


def test_frames_tell_settings() -> None:
    checkpoint = Frame("/s/torch/utils/checkpoint.py", 500, "checkpoint", None)
    assert (
        setup_of(Given(), {}, (*LAYER, checkpoint)).values.get("activation_checkpointing") == "full"
    )
    assert setup_of(Given(), {}, LAYER).values.get("activation_checkpointing") == "none"
    assert setup_of(Given(), {}, ADAM).values.get("activation_checkpointing") is None
    eager = Frame("/s/transformers/models/llama/modeling_llama.py", 9, "eager_attention_forward",
                  None)  # fmt: skip
    assert setup_of(Given(), {}, (eager,)).values.get("attention") == "eager"
    quantized = Frame("/s/bitsandbytes/nn/modules.py", 9, "forward", None)
    assert setup_of(Given(), {}, (quantized,)).values.get("method") == "qlora"


def test_the_file_wins_over_the_frames() -> None:
    setup = setup_of(Given(settings={"gradient_checkpointing": True}), {}, LAYER)
    assert setup.values.get("activation_checkpointing") == "full"


def test_deep_and_strange_files_do_no_harm() -> None:
    nested: dict[str, Any] = {}
    nested["self"] = {"a": [1, {"b": 2}], "micro_batch_size": {"x": 1}}
    assert _read(nested).values.get("micro_batch_size") is None


@pytest.mark.parametrize(
    ("settings", "roles"),
    [
        ({"lora_target_modules": ["q_proj", "v_proj"]}, ("q", "v")),
        ({"lora_target": "all"}, ("q", "k", "v", "o", "gate", "up", "down")),
        ({"peft": {"target_modules": "all-linear"}}, ("q", "k", "v", "o", "gate", "up", "down")),
        ({"lora_target_linear": True}, ("q", "k", "v", "o", "gate", "up", "down")),
        ({"lora_target": "c_attn,c_fc"}, ("q", "k", "v", "up")),
        ({"target_modules": ["model.layers.0.self_attn.o_proj"]}, ("o",)),
        ({"target_modules": ["something_else"]}, None),
        ({}, None),
    ],
)
def test_where_adapters_sit(settings: dict[str, Any], roles: tuple[str, ...] | None) -> None:
    assert roles_of(_read(settings).values.get("lora_targets")) == roles


def test_autocast_shows_in_the_traceback() -> None:
    frame = Frame("/s/torch/amp/autocast_mode.py", 44, "decorate_autocast", "return func(*args)")
    assert setup_of(Given(), {}, (frame,)).values.get("autocast_dtype") == "bfloat16"
    assert setup_of(Given(), {"fp16": True}, (frame,)).values.get("autocast_dtype") == "float16"
