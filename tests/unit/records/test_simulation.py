"""What colocated vLLM takes of a device."""

from __future__ import annotations

from oomdoctor.records.configuration.config import TrainConfig
from oomdoctor.records.job.simulation import Target
from oomdoctor.units import GIB


def test_vllm_takes_its_share_of_the_whole_card() -> None:
    target = Target("card", 24 * GIB, 23 * GIB, GIB, None)
    assert target.beside_vllm(TrainConfig(objective="grpo")) == target
    rung = TrainConfig(objective="grpo", vllm_gpu_memory_utilization=0.25)
    beside = target.beside_vllm(rung)
    assert (beside.usable_bytes, beside.overhead_bytes) == (23 * GIB, 7 * GIB)
    assert beside.limit_bytes == target.limit_bytes - 6 * GIB
