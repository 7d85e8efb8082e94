"""Host memory of a node, against sums worked out by hand."""

from __future__ import annotations

from dataclasses import replace

import pytest
from analysis_make import COUNTS, GIB

from oomdoctor.analysis.memory.host import (
    PROCESS_BYTES,
    HostMemory,
    HostPart,
    host_memory,
    is_known,
)
from oomdoctor.records.configuration.config import TrainConfig

P = COUNTS.total
CONFIG = TrainConfig(world_size=8, sharding="zero2", micro_batch_size=2)
SHARD = P // 8  # 125,000,000


def parts(config: TrainConfig, trainable: int | None = None, **more) -> dict[str, int]:
    found = host_memory(config, COUNTS, trainable, **more)
    return {part.name: part.size_bytes for part in found.parts if part.size_bytes}


def test_every_rank_of_a_node_is_a_process():
    assert parts(CONFIG) == {"processes": 8 * PROCESS_BYTES}
    assert parts(replace(CONFIG, world_size=64))["processes"] == 8 * PROCESS_BYTES
    assert parts(TrainConfig(micro_batch_size=1))["processes"] == PROCESS_BYTES


def test_zero_offload_keeps_the_master_copy_and_pins_powers_of_two():
    found = parts(replace(CONFIG, offload="optimizer"))
    assert found == {
        "processes": 8 * PROCESS_BYTES,
        "fp32 weights": 8 * 2**29,  # 500 MB, pinned
        "fp32 gradients": 8 * 2**29,
        "optimizer states": 8 * SHARD * 8,
        "16-bit buffers": 8 * 2**28,  # 250 MB
    }
    accumulating = replace(CONFIG, offload="optimizer", effective_batch_size=64)
    assert parts(accumulating)["accumulated gradients"] == 8 * SHARD * 2


def test_zero_three_offloads_weights_too():
    three = replace(CONFIG, sharding="zero3", offload="optimizer")
    assert parts(three)["fp32 weights"] == 8 * SHARD * 4
    assert "weights" not in parts(three)
    assert parts(replace(three, offload="parameters"))["weights"] == 8 * 2**28


def test_only_what_is_trained_is_kept_for_adapters():
    lora = replace(CONFIG, method="lora", offload="optimizer")
    assert parts(lora, 8_000_000)["optimizer states"] == 8 * 1_000_000 * 8


def test_fsdp_offload_keeps_shards_in_their_own_type():
    fsdp = replace(CONFIG, sharding="fsdp", offload="parameters")
    found = parts(fsdp)
    assert found["weights"] == found["gradients"] == P * 2
    assert found["optimizer states"] == P * 2 * 2
    exact = parts(replace(fsdp, weights_dtype="float32"))
    assert exact["optimizer states"] == P * 4 * 2


def test_hybrid_keeps_a_whole_model_on_each_node():
    hybrid = replace(CONFIG, sharding="hybrid", world_size=16, offload="parameters")
    assert parts(hybrid)["weights"] == P * 2
    assert parts(replace(hybrid, sharding="fsdp"))["weights"] == P * 2 / 2


@pytest.mark.parametrize(
    ("sharding", "loading"), [("ddp", 0), ("zero2", 0), ("fsdp", P * 2), ("zero3", P * 2 + P * 2)]
)
def test_who_loads_the_checkpoint(sharding, loading):
    found = host_memory(replace(CONFIG, sharding=sharding), COUNTS, None)
    assert found.peak_bytes == 8 * PROCESS_BYTES + loading


def test_loading_and_training_do_not_add_up():
    found = HostMemory(
        2,
        (
            HostPart("processes", GIB, None),
            HostPart("the checkpoint on one rank", 8 * GIB, loading=True),
            HostPart("optimizer states", 4 * GIB),
        ),
    )
    assert found.peak_bytes == 9 * GIB
    assert found.text() == (
        "host memory of a node with 2 ranks while loading: the checkpoint on one rank 8.00 GiB, "
        "processes 1.00 GiB"
    )
    later = replace(found, parts=(found.parts[0], found.parts[2]))
    assert later.text() == (
        "host memory of a node with 2 ranks: optimizer states 4.00 GiB, processes 1.00 GiB"
    )


def test_what_vllm_displaces_and_a_critic_at_rest_are_in_host_memory():
    ppo = replace(CONFIG, sharding="fsdp", objective="grpo", vllm_gpu_memory_utilization=0.5)
    moved = parts(replace(ppo, rollout_offload="optimizer"))
    assert moved["states moved for vLLM"] == P * 2 * 2
    assert parts(replace(ppo, rollout_offload="all"))["model moved for vLLM"] == P * (2 + 2 * 2)
    assert parts(replace(ppo, critic="host"))["critic"] == P * (2 + 2 * 2)
    assert parts(replace(ppo, critic="weights"))["critic"] == P * 2 * 2
    two = parts(replace(ppo, sharding="zero2", rollout_offload="optimizer"))
    assert two["states moved for vLLM"] == P * (4 + 2 * 4)
    lora = parts(replace(ppo, method="lora", critic="weights", rollout_offload="optimizer"), 8_000)
    assert lora["critic"] == P * 2 * 2  # a critic is trained whole
    assert lora["states moved for vLLM"] == 8_000 * 4 * 2
    assert is_known(replace(CONFIG, world_size=1, sharding="none", critic="host"))
