"""The configuration with which a worker looks at a model."""

from __future__ import annotations

from dataclasses import replace

from oomdoctor.records.config import TrainConfig


def on_one_gpu(config: TrainConfig) -> TrainConfig:
    """The configuration to look at a model with, which needs no other GPU."""
    plain = TrainConfig()
    return replace(
        config, sharding="none", world_size=1, offload="none", bucket_elements=plain.bucket_elements
    )
