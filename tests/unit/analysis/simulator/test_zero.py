"""A rung with ZeRO, from the step on one GPU."""

from __future__ import annotations

from dataclasses import replace

import pytest
from analysis_make import measurement
from layout_make import layout

from oomdoctor.analysis.memory.zero.setting import Parameter
from oomdoctor.analysis.simulator.zero import NOTE, alone_config, peaks_beside, zero_measurement
from oomdoctor.records.configuration.config import TrainConfig
from oomdoctor.records.configuration.faults import config_faults

CONFIG = TrainConfig(
    sharding="zero2",
    world_size=8,
    micro_batch_size=2,
    effective_batch_size=64,
    weights_dtype="float32",
    autocast_dtype="bfloat16",
    offload="optimizer",
    bucket_elements=1000,
)


def test_the_step_alone_is_one_micro_batch_in_sixteen_bits():
    alone = alone_config(CONFIG)
    assert (alone.sharding, alone.world_size, alone.effective_batch_size) == ("none", 1, 2)
    assert (alone.weights_dtype, alone.autocast_dtype, alone.offload) == (
        "bfloat16",
        "none",
        "none",
    )
    assert config_faults(alone) == []
    assert alone_config(replace(CONFIG, offload="activations")).offload == "activations"


@pytest.mark.parametrize(
    ("stage", "named", "found"),
    [
        ("zero1", "default", "bfloat16"),
        ("zero2", "default", "bfloat16"),
        ("zero3", "default", "default"),  # made in float32 after zero.Init, and never cast
        ("zero3", "bfloat16", "bfloat16"),
    ],
)
def test_the_step_alone_has_adapters_as_deepspeed_has_them(stage, named, found):
    config = replace(CONFIG, method="lora", sharding=stage, adapter_dtype=named)
    assert alone_config(config).adapter_dtype == found
    assert alone_config(CONFIG).adapter_dtype == "default"


def test_the_peak_has_the_buffers_of_deepspeed():
    config = replace(CONFIG, offload="none", weights_dtype="bfloat16", autocast_dtype="none")
    parameters = [Parameter(1_000_000)] * 8
    found = zero_measurement(measurement(), peaks_beside(config, layout(), parameters))
    shard, total = 1_000_000, 8_000_000
    # Weights and the fp32 copy with its states; then the gradients and their flat and fp32 copies.
    least = 2 * total + 12 * shard + 2 * shard + 6 * shard
    assert least <= found.peak_allocated_bytes < 1.2 * least
    assert found.peak_phase == "optimizer"
    assert set(found.phases) == {"load", "forward", "backward", "optimizer"}
    assert found.breakdown.weights_bytes == 2 * total
    assert found.peak_reserved_bytes is None
    assert NOTE in found.notes
