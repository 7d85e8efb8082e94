"""The floor of a rung: each term by hand, and never more than what must be there."""

from __future__ import annotations

from dataclasses import replace

import pytest
from analysis_make import COUNTS
from hypothesis import given
from hypothesis import strategies as st

from oomdoctor.analysis.memory.closed_form import lower_bound, state_bytes, weights_bytes
from oomdoctor.records.configuration.config import TrainConfig
from oomdoctor.records.job.model import ParameterCounts

N = COUNTS.total


@pytest.mark.parametrize(
    ("values", "bytes_each"),
    [
        ({"weights_dtype": "float32"}, 16),
        ({"weights_dtype": "float32", "autocast_dtype": "bfloat16"}, 16),
        ({}, 8),
        ({"optimizer": "adamw_torch"}, 8),
        ({"optimizer": "adamw_bnb_8bit"}, 6),
        ({"optimizer": "lion_8bit"}, 5),
        ({"optimizer": "paged_adamw_8bit"}, 4),
        ({"optimizer": "paged_adamw_32bit"}, 4),
        ({"optimizer": "adafactor"}, 4),
        ({"optimizer": "sgd"}, 4),
        ({"optimizer": "lomo"}, 2),  # may never hold all gradients
        ({"offload": "optimizer"}, 4),
        ({"optimizer_in_backward": True}, 6),  # no gradients wait for the step
        ({"frozen_layers": 2}, 2),  # which parameters are trained is not known
        ({"method": "lora"}, 2),
        ({"method": "lora", "weights_dtype": "float32"}, 4),
    ],
)
def test_bytes_a_parameter(values, bytes_each):
    assert lower_bound(TrainConfig(**values), COUNTS).size_bytes == bytes_each * N


@pytest.mark.parametrize(
    ("values", "expected"),
    [
        # 800M / 2 + 12.5M scales + 48,828 x 4 nested scales + 200M x 4 (peft upcasts the rest)
        ({}, 400_000_000 + 12_500_000 + 4 * 48_828 + 800_000_000),
        ({"kbit_prepare": "norms"}, 400_000_000 + 12_500_000 + 4 * 48_828 + 400_000_000),
        ({"double_quant": False}, 400_000_000 + 50_000_000 + 800_000_000),
        ({"quantization": "int8"}, 800_000_000 + 800_000_000),
        # Unsloth's own preparation casts norms alone.
        ({"library": "unsloth"}, 400_000_000 + 12_500_000 + 4 * 48_828 + 400_000_000),
        ({"quantization": "int8", "kbit_prepare": "none"}, 800_000_000 + 400_000_000),
    ],
)
def test_quantised_base(values, expected):
    config = TrainConfig(**{"method": "qlora", "quantization": "nf4", **values})
    assert lower_bound(config, COUNTS).size_bytes == expected
    assert weights_bytes(config, COUNTS) == expected


def test_experts_without_tokens_have_no_gradient():
    counts = replace(COUNTS, routed_experts=600_000_000, experts=8, experts_per_token=2)
    bound = lower_bound(TrainConfig(), counts)
    assert bound.size_bytes == 2 * N + 6 * (400_000_000 + 150_000_000)


def test_parameters_that_may_not_learn_count_as_weights_only():
    assert lower_bound(TrainConfig(), COUNTS, all_learn=False).size_bytes == 2 * N


@pytest.mark.parametrize(
    ("sharding", "expected"),
    [
        ("ddp", 8 * N),
        ("zero1", 2 * N + 6 * N // 4),
        ("zero2", 2 * N + 6 * N // 4),
        ("zero3", 2 * N),
        ("fsdp", 2 * N),
    ],
)
def test_sharding_divides_what_it_shards(sharding, expected):
    config = TrainConfig(sharding=sharding, world_size=4)
    assert lower_bound(config, COUNTS).size_bytes == expected


def test_offloaded_parameters_leave_nothing_certain():
    assert lower_bound(TrainConfig(offload="parameters"), COUNTS).size_bytes == 0


def test_an_optimizer_on_the_host_leaves_weights_and_gradients():
    offloaded = TrainConfig(offload="optimizer")
    assert lower_bound(offloaded, COUNTS).size_bytes == 4 * N
    assert state_bytes(offloaded, COUNTS) == 0


def test_the_arithmetic_is_a_sum_that_can_be_checked():
    assert lower_bound(TrainConfig(), COUNTS).arithmetic == (
        "weights 1,000,000,000 x 2 bytes = 1.86 GiB, "
        "gradients 1,000,000,000 x 2 bytes = 1.86 GiB, "
        "optimizer states 1,000,000,000 x 4 bytes = 3.73 GiB"
    )
    lora = lower_bound(TrainConfig(method="lora"), COUNTS)
    assert lora.arithmetic == "weights 1,000,000,000 x 2 bytes = 1.86 GiB"
    qlora = lower_bound(TrainConfig(method="qlora", quantization="nf4"), COUNTS)
    assert "4-bit weights 800,000,000 x 0.5 byte = 381 MiB" in qlora.arithmetic


def test_states_of_an_unknown_optimizer_are_unknown():
    assert state_bytes(TrainConfig(optimizer="galore_adamw"), COUNTS) is None
    assert state_bytes(TrainConfig(weights_dtype="float32"), COUNTS) == 8 * N


@given(
    linear=st.integers(0, 10**9),
    embedding=st.integers(0, 10**9),
    rest=st.integers(0, 10**7),
    dtype=st.sampled_from(["float32", "bfloat16"]),
    optimizer=st.sampled_from(["adamw_torch", "adamw_8bit", "sgd", "paged_adamw_8bit"]),
)
def test_less_of_everything_is_never_a_higher_floor(linear, embedding, rest, dtype, optimizer):
    counts = ParameterCounts(linear + embedding + rest, linear, embedding, rest, 0)

    def size(**values):
        return lower_bound(TrainConfig(**values), counts).size_bytes

    full = size(weights_dtype=dtype, optimizer=optimizer)
    lora = size(method="lora", weights_dtype=dtype)
    nf4 = size(method="qlora", quantization="nf4", weights_dtype=dtype, kbit_prepare="none")
    assert full >= lora >= nf4 >= 0
    assert full <= 16 * counts.total


def test_a_reference_model_counts_once_more_as_weights():
    plain = TrainConfig(micro_batch_size=1)
    dpo = replace(plain, objective="dpo")
    weights = 2 * COUNTS.total
    own = lower_bound(plain, COUNTS).size_bytes
    assert lower_bound(dpo, COUNTS).size_bytes == own + weights
    assert "reference model" in lower_bound(dpo, COUNTS).arithmetic
    precomputed = replace(dpo, reference="precomputed")
    assert lower_bound(precomputed, COUNTS).size_bytes == own
    lora = replace(plain, method="lora")
    adapters = replace(lora, objective="dpo")
    assert lower_bound(adapters, COUNTS) == lower_bound(lora, COUNTS)


def test_a_reward_model_has_no_output_head():
    reward = TrainConfig(micro_batch_size=1, method="lora", objective="reward")
    found = lower_bound(reward, COUNTS).size_bytes
    assert found == 2 * (COUNTS.total - COUNTS.embedding // 2)
