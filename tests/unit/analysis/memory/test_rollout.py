"""What a GRPO job needs outside its step: generation, and weights for vLLM."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from oomdoctor.analysis.memory.rollout import engine_fault, moments_of
from oomdoctor.records.configuration.config import TrainConfig
from oomdoctor.records.job.measurement import Breakdown, Measurement, PhaseMemory
from oomdoctor.records.job.model import ParameterCounts
from oomdoctor.units import GIB, MIB

# The sizes of Qwen2.5-0.5B.
MODEL = {
    "model_type": "qwen2", "hidden_size": 896, "intermediate_size": 4864, "vocab_size": 151936,
    "num_hidden_layers": 24, "num_attention_heads": 14, "num_key_value_heads": 2,
}  # fmt: skip
COUNTS = ParameterCounts(494_032_768, 357_826_560, 136_134_656, 71_552, 0)
STEP = Measurement(
    peak_allocated_bytes=6 * GIB,
    peak_reserved_bytes=7 * GIB,
    peak_device_bytes=8 * GIB,
    overhead_bytes=GIB,
    peak_rss_bytes=None,
    peak_phase="backward",
    phases={},
    first_step={},
    steady={},
    breakdown=Breakdown(GIB, GIB, 2 * GIB, 2 * GIB, 0, 0),
    allocation_retries=0,
    managed_bytes=0,
    timing=None,
    attention_kernel=None,
    trainable_parameters=COUNTS.total,
    parameters=COUNTS.total,
    losses=(),
    skipped_optimizer_steps=0,
    notes=(),
    versions={},
)
GRPO = TrainConfig(
    objective="grpo", sequence_length=512, completion_length=256, effective_batch_size=16,
    weights_dtype="bfloat16", micro_batch_size=4,
)  # fmt: skip


def moments(config: TrainConfig, step: Measurement = STEP):
    return {m.name: m for m in moments_of(config, MODEL, COUNTS, step, 24 * GIB)}


@pytest.mark.parametrize(
    ("prompt", "completion", "rows", "emulated_mib"),
    [(256, 256, 16, 191.06), (32, 448, 32, 262.84)],
)
def test_generation_with_transformers_is_that_of_the_emulated_gpu(
    prompt: int, completion: int, rows: int, emulated_mib: float
):
    config = replace(
        GRPO,
        sequence_length=prompt + completion,
        completion_length=completion,
        effective_batch_size=rows,
    )
    generate = moments(config)["generate"]
    kept = generate.allocated_bytes - 3 * GIB  # weights and optimizer states
    assert kept == pytest.approx(emulated_mib * MIB, rel=0.01)
    assert generate.device_bytes == generate.allocated_bytes + GIB
    assert generate.engine_bytes == 0


def test_other_objectives_have_no_moments():
    assert moments(replace(GRPO, objective="dpo")) == {}


def test_vllm_holds_its_share_all_the_time():
    config = replace(GRPO, vllm_gpu_memory_utilization=0.25)
    step = replace(STEP, peak_device_bytes=14 * GIB, overhead_bytes=7 * GIB)
    at = moments(config, step)
    assert at["step"].device_bytes == 14 * GIB and at["step"].engine_bytes == 6 * GIB
    assert at["generate"].device_bytes == 14 * GIB  # what the step reserved stays
    assert at["sync"].device_bytes == at["generate"].device_bytes


def test_a_sleeping_vllm_leaves_the_step_alone_and_wakes_for_weights_first():
    config = replace(GRPO, vllm_gpu_memory_utilization=0.75, vllm_enable_sleep_mode=True)
    at = moments(config)
    assert at["step"].engine_bytes == 0
    assert at["generate"].device_bytes == (3 + 1 + 18) * GIB
    assert at["sync"].engine_bytes == 2 * COUNTS.total


def test_a_sleeping_vllm_wakes_beside_what_a_simulated_step_leaves():
    step = replace(STEP, resting=PhaseMemory(3 * GIB + 20 * MIB, 3 * GIB + 200 * MIB))
    config = replace(GRPO, vllm_gpu_memory_utilization=0.75, vllm_enable_sleep_mode=True)
    generate = moments(config, step)["generate"]
    assert generate.allocated_bytes == 3 * GIB + 20 * MIB
    assert generate.device_bytes == 3 * GIB + 200 * MIB + (1 + 18) * GIB


@pytest.mark.parametrize(
    ("moved", "generating", "given_weights"), [("none", 3, 3), ("optimizer", 1, 1), ("all", 0, 1)]
)
def test_what_is_in_host_memory_leaves_room_for_vllm(
    moved: str, generating: int, given_weights: int
):
    config = replace(GRPO, vllm_gpu_memory_utilization=0.25, rollout_offload=moved)
    at = moments(config)
    assert at["generate"].allocated_bytes == generating * GIB  # 1 of weights, 2 of states
    assert at["sync"].allocated_bytes == given_weights * GIB


@pytest.mark.parametrize(
    ("settings", "gathered"),
    [
        ({"sharding": "ddp"}, 0),
        ({"sharding": "fsdp", "fsdp_version": 2}, 2 * COUNTS.embedding),
        ({"sharding": "zero3"}, 2 * COUNTS.embedding),
        ({"sharding": "zero3", "method": "lora"}, 2 * COUNTS.total),  # merged as a whole
    ],
)
def test_sharded_weights_are_gathered_for_vllm(settings: dict[str, object], gathered: int):
    config = replace(GRPO, world_size=2, vllm_gpu_memory_utilization=0.25, **settings)
    assert moments(config)["sync"].allocated_bytes == 3 * GIB + gathered


@pytest.mark.parametrize(
    ("settings", "each"),
    [
        ({"critic": "card"}, 2 + 2 * 2),
        ({"critic": "weights"}, 2),
        ({"critic": "host"}, 0),
        ({"critic": "card", "weights_dtype": "float32"}, 4 + 2 * 4),
        ({"critic": "card", "sharding": "fsdp"}, (2 + 4) / 2),
        ({"critic": "card", "sharding": "zero2"}, 2 + (4 + 2 * 4) / 2),  # master weights, moments
        ({"critic": "card", "sharding": "zero3"}, (2 + 4 + 2 * 4) / 2),
        ({"critic": "card", "sharding": "zero3", "offload": "optimizer"}, 2 / 2),
        ({"reward_model": "card", "sharding": "zero2"}, 2),
        ({"reward_model": "card", "sharding": "zero3"}, 2 / 2),
        ({"critic": "weights", "reward_model": "card"}, 2 + 2),
    ],
)
@pytest.mark.parametrize("share", [0.0, 0.25])
def test_other_models_of_ppo_are_on_the_card_at_all_moments(
    settings: dict[str, Any], each: float, share: float
):
    """They have a score instead of the output head, which is tied here."""
    model = MODEL | {"tie_word_embeddings": True}
    config = replace(GRPO, vllm_gpu_memory_utilization=share)
    config = replace(config, world_size=2 if "sharding" in settings else 1)
    rest = {k: v for k, v in settings.items() if k not in ("critic", "reward_model")}
    alone = moments_of(replace(config, **rest), model, COUNTS, STEP, 24 * GIB)
    both = moments_of(replace(config, **settings), model, COUNTS, STEP, 24 * GIB)
    assert len(both) == (3 if share else 2)
    for without, moment in zip(alone, both, strict=True):
        more = moment.allocated_bytes - without.allocated_bytes
        assert more == pytest.approx(each * COUNTS.total, abs=2)
        assert moment.device_bytes - without.device_bytes == more


def test_a_head_that_is_not_the_embedding_is_no_part_of_a_critic():
    model = MODEL | {"tie_word_embeddings": False}
    (step, _) = moments_of(replace(GRPO, critic="weights"), model, COUNTS, STEP, 24 * GIB)
    assert step.allocated_bytes - 6 * GIB == 2 * (COUNTS.total - COUNTS.embedding // 2)


def test_a_share_below_the_weights_is_refused_with_the_least():
    config = replace(GRPO, vllm_gpu_memory_utilization=0.1)
    fault = engine_fault(config, MODEL, COUNTS, 4 * GIB)
    assert fault is not None and "at least 0.24 of the card" in fault
    assert engine_fault(config, MODEL, COUNTS, 12 * GIB) is None
    assert engine_fault(GRPO, MODEL, COUNTS, 1 * GIB) is None  # without vLLM


def test_vllm_takes_four_bits_as_the_training_does():
    config = replace(
        GRPO, method="qlora", quantization="nf4", vllm_gpu_memory_utilization=0.2,
        vllm_enable_sleep_mode=True,
    )  # fmt: skip
    awake = moments(config)["sync"].engine_bytes
    assert COUNTS.linear // 2 + 2 * COUNTS.embedding < awake < 2 * COUNTS.total


def test_windows_bound_the_keys_and_values():
    model = {**MODEL, "sliding_window": 128, "layer_types": ["sliding_attention"] * 24}
    config = replace(GRPO, sequence_length=4096, completion_length=4000)
    of_window, of_all = (
        moments_of(config, of, COUNTS, STEP, 24 * GIB)[1].allocated_bytes for of in (model, MODEL)
    )
    assert of_window < of_all


# Qwen3-0.6B as verl trains it: float32 weights, gradients apart, two moments.
QWEN3 = {
    "model_type": "qwen3", "hidden_size": 1024, "intermediate_size": 3072, "vocab_size": 151936,
    "num_hidden_layers": 28, "num_attention_heads": 16, "num_key_value_heads": 8, "head_dim": 128,
    "tie_word_embeddings": True,
}  # fmt: skip
QWEN3_COUNTS = ParameterCounts(596_049_920, 440_401_920, 155_582_464, 65_536, 0)
AT_REST = 12 * QWEN3_COUNTS.total
VERL = replace(
    GRPO, rl_program="verl", reference="kl", weights_dtype="float32", autocast_dtype="bfloat16",
    sharding="fsdp", vllm_gpu_memory_utilization=0.3, vllm_enable_sleep_mode=True,
)  # fmt: skip


def moments_of_verl(**settings: Any):
    weights = 4 * QWEN3_COUNTS.total
    parts = Breakdown(weights, weights, 2 * weights, 0, 0, 0)
    step = replace(STEP, breakdown=parts)
    config = replace(VERL, **settings)
    return {m.name: m for m in moments_of(config, QWEN3, QWEN3_COUNTS, step, 80 * GIB)}


def test_verl_copies_weights_and_fills_a_buffer_for_vllm_as_on_the_emulated_gpu():
    recorded = 12_327_188_992  # of the process that trains, in verl-grpo of third_party.json
    assert moments_of_verl()["sync"].allocated_bytes == pytest.approx(recorded, rel=0.005)
    # Sharded weights are not copied: the largest is gathered.
    several = moments_of_verl(world_size=2)["sync"].allocated_bytes
    assert several == AT_REST + 2 * GIB + 4 * QWEN3_COUNTS.embedding


@pytest.mark.parametrize(
    ("settings", "contexts"),
    [
        ({"rl_program": "trl"}, 1),
        ({"rl_program": "verl"}, 2),
        ({"rl_program": "verl", "critic": "card"}, 2),
        ({"rl_program": "openrlhf", "reference": "default"}, 2),
        ({"rl_program": "openrlhf", "reference": "default", "critic": "host"}, 3),
    ],
)
def test_each_process_has_a_context(settings: dict[str, Any], contexts: int):
    at = moments_of_verl(**settings)["generate"]
    beside = at.allocated_bytes + at.engine_bytes
    assert at.device_bytes - beside == contexts * GIB  # that of `STEP`


def test_the_process_of_a_reference_keeps_logits_reserved():
    both = [
        moments_of_verl(rl_program="openrlhf", reference=reference)["sync"].device_bytes
        for reference in ("default", "kl")
    ]
    tokens = GRPO.micro_batch() * GRPO.sequence_length
    weights = 2 * QWEN3_COUNTS.total
    assert both[1] - both[0] == GIB + weights + 6 * tokens * QWEN3["vocab_size"]


@pytest.mark.parametrize("sharding", ["fsdp", "zero2", "zero3"])
def test_what_an_engine_does_not_divide_is_known_by_arithmetic(sharding: str):
    config = replace(GRPO, sharding=sharding, world_size=2, vllm_gpu_memory_utilization=0.25)
    at = moments(config, replace(STEP, breakdown=None))["generate"]
    each = {"fsdp": (2 + 4) / 2, "zero2": 2 + 12 / 2, "zero3": (2 + 12) / 2}[sharding]
    assert at.allocated_bytes == pytest.approx(each * COUNTS.total)
