"""Contradictions in the keys of a rung: each is named at the key that has to change."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from oomdoctor.records.configuration.config import TrainConfig
from oomdoctor.records.configuration.faults import config_faults


@pytest.mark.parametrize(
    ("changes", "key"),
    [
        ({"sharding": "ddp", "fsdp_version": 1}, "fsdp_version"),
        ({"sharding": "ddp", "prefetch": "forward"}, "prefetch"),
        ({"sharding": "zero2", "prefetch": "none"}, "prefetch"),
        ({"sharding": "fsdp", "prefetch": "none"}, "prefetch"),
        ({"sharding": "ddp", "reduce_dtype": "float32"}, "reduce_dtype"),
        ({"sharding": "zero3", "sync_each_batch": True}, "sync_each_batch"),
        ({"sharding": "fsdp", "bucket_elements": 5}, "bucket_elements"),
        ({"sharding": "ddp", "offload": "parameters"}, "offload"),
        ({"sharding": "fsdp", "offload": "optimizer"}, "offload"),
        ({"sharding": "hybrid"}, "world_size"),
        ({"sharding": "ddp", "context_parallel_size": 2}, "context_parallel_size"),
        (
            {"sharding": "zero3", "context_parallel_size": 2, "attention": "eager"},
            "context_parallel_size",
        ),
        (
            {"sharding": "zero2", "context_parallel_size": 2, "packing": "packed"},
            "context_parallel_size",
        ),
        ({"sharding": "tensor_parallel", "method": "lora"}, "sharding"),
        ({"sharding": "fsdp", "context_parallel_size": 3}, "context_parallel_size"),
        (
            {"sharding": "fsdp", "context_parallel_size": 2, "fsdp_version": 1},
            "context_parallel_size",
        ),
        (
            {"sharding": "fsdp", "context_parallel_size": 2, "attention": "flash_attention_2"},
            "context_parallel_size",
        ),
        (
            {"sharding": "fsdp", "context_parallel_size": 2, "sequence_length": 2050},
            "sequence_length",
        ),
        ({"sharding": "none"}, "sharding"),
    ],
    ids=str,
)
def test_a_setting_that_the_engine_does_not_have_is_refused(
    changes: dict[str, Any], key: str
) -> None:
    config = TrainConfig(**{"world_size": 4, **changes})
    assert [name for name, _ in config_faults(config)] == [key]


@pytest.mark.parametrize(
    ("changes", "key"),
    [
        ({"reference": "precomputed"}, "reference"),
        ({"objective": "reward", "reference": "precomputed"}, "reference"),
        ({"objective": "dpo", "reference": "kl"}, "reference"),
        ({"objective": "grpo", "num_generations": 3}, "num_generations"),
        ({"objective": "grpo", "num_generations": 1}, "num_generations"),
        ({"objective": "grpo", "activation_checkpointing": "offload"}, "activation_checkpointing"),
        ({"completion_length": 64}, "completion_length"),
        ({"vllm_gpu_memory_utilization": 0.3}, "vllm_gpu_memory_utilization"),
        ({"objective": "grpo", "vllm_gpu_memory_utilization": 1.0}, "vllm_gpu_memory_utilization"),
        ({"objective": "grpo", "vllm_enable_sleep_mode": True}, "vllm_enable_sleep_mode"),
        ({"objective": "grpo", "rollout_offload": "all"}, "rollout_offload"),
        ({"objective": "dpo", "completion_length": 2048}, "completion_length"),
        ({"objective": "dpo", "completion_length": -1}, "completion_length"),
        ({"objective": "dpo", "loss": "liger"}, "loss"),
        ({"objective": "reward", "packing": "packed"}, "packing"),
        ({"objective": "dpo", "activation_checkpointing": "every_n"}, "activation_checkpointing"),
        ({"document_length": 0}, "document_length"),
        ({"padding": "longest", "packing": "packed"}, "padding"),
        ({"padding": "longest", "sequence_length": 1}, "padding"),
        ({"padding": "longest", "objective": "grpo"}, "padding"),
    ],
    ids=str,
)
def test_a_setting_that_an_objective_does_not_have_is_refused(
    changes: dict[str, Any], key: str
) -> None:
    assert [name for name, _ in config_faults(TrainConfig(**changes))] == [key]


@pytest.mark.parametrize(
    ("changes", "key"),
    [
        ({"use_dora": True}, "use_dora"),
        ({"use_rslora": True}, "use_rslora"),
        ({"modules_to_save": ("lm_head",)}, "modules_to_save"),
        ({"method": "lora", "frozen_layers": 1}, "frozen_layers"),
        ({"frozen_layers": -1}, "frozen_layers"),
        ({"method": "lora", "fp8": "torchao"}, "fp8"),
        ({"sharding": "ddp", "world_size": 2, "fp8": "torchao"}, "fp8"),
        ({"fp8": "transformer_engine", "activation_checkpointing": "full"}, "fp8"),
        ({"optimizer_in_backward": True, "micro_batch_size": 8}, "optimizer_in_backward"),
        (
            {"optimizer_in_backward": True, "sharding": "ddp", "world_size": 2},
            "optimizer_in_backward",
        ),
        (
            {
                "optimizer_in_backward": True,
                "weights_dtype": "float32",
                "autocast_dtype": "float16",
            },
            "optimizer_in_backward",
        ),
        ({"optimizer_in_backward": True, "offload": "optimizer"}, "offload"),
    ],
    ids=str,
)
def test_a_technique_of_another_method_is_refused(changes: dict[str, Any], key: str) -> None:
    assert [name for name, _ in config_faults(TrainConfig(**changes))] == [key]


@pytest.mark.parametrize("sharding", ["zero3", "fsdp"])
def test_what_an_engine_has_is_accepted(sharding: Any) -> None:
    plain = TrainConfig(sharding=sharding, world_size=4, reduce_dtype="float32")
    assert config_faults(plain) == []
    assert config_faults(replace(plain, offload="parameters")) == []
