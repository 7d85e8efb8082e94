"""What the Trainer is told about the engine of a rung."""

from __future__ import annotations

from typing import Any

import pytest

from oomdoctor.records.configuration.config import TrainConfig
from oomdoctor.stacks.engines import fsdp_settings, zero_settings
from oomdoctor.worker.training.sharding import engine_arguments


def rung(sharding: Any, **values: Any) -> TrainConfig:
    return TrainConfig(**{"sharding": sharding, "world_size": 16, **values})


def test_one_gpu_has_no_engine() -> None:
    assert engine_arguments(TrainConfig(), 2) == {}


@pytest.mark.parametrize(
    ("offload", "moved"),
    [
        ("none", set()),
        ("activations", set()),
        ("optimizer", {"offload_optimizer"}),
        ("parameters", {"offload_optimizer", "offload_param"}),
    ],
)
def test_deepspeed_moves_to_the_host_what_the_rung_says(offload: str, moved: set[str]) -> None:
    stage = zero_settings(rung("zero3", offload=offload))["zero_optimization"]
    assert stage["stage"] == 3
    assert {name for name in stage if name.startswith("offload")} == moved


def test_buckets_are_in_the_units_of_the_engine() -> None:
    stage = zero_settings(rung("zero2", bucket_elements=1000))["zero_optimization"]
    assert (stage["reduce_bucket_size"], stage["allgather_bucket_size"]) == (1000, 1000)
    found = engine_arguments(rung("ddp", bucket_elements=10 << 20), gradient_bytes=2)
    assert found["ddp_bucket_cap_mb"] == 20


def test_fsdp_reshards_unless_the_rung_keeps_the_weights() -> None:
    assert fsdp_settings(rung("fsdp"))["reshard_after_forward"] is True
    assert fsdp_settings(rung("fsdp_grad_op"))["reshard_after_forward"] is False
    older = fsdp_settings(rung("hybrid", fsdp_version=1))
    assert older["reshard_after_forward"] == "hybrid_shard"
    assert (older["backward_prefetch"], older["forward_prefetch"]) == ("backward_pre", False)


def test_gradients_are_reduced_with_each_micro_batch_if_asked() -> None:
    found = engine_arguments(rung("fsdp", sync_each_batch=True), 2)["accelerator_config"]
    assert found == {"gradient_accumulation_kwargs": {"sync_each_batch": True}}
    assert "accelerator_config" not in engine_arguments(rung("fsdp"), 2)
