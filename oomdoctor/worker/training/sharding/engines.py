"""The arguments with which transformers' Trainer sets up the engine of a rung.

The engines are those of the user's environment; nothing of them is repeated here.
"""

from __future__ import annotations

from typing import Any

from oomdoctor.records.config import TrainConfig
from oomdoctor.stacks.engines import engine_settings


def engine_arguments(config: TrainConfig, gradient_bytes: int) -> dict[str, Any]:
    """Values for `TrainingArguments`; empty on one GPU.

    `gradient_bytes` is the size of an element of a gradient, for DDP's buckets.
    """
    found = engine_settings(config, gradient_bytes)
    if config.sharding == "hybrid" and config.fsdp_version == 2:
        found["parallelism_config"] = _mesh(config)
    return found


def _mesh(config: TrainConfig) -> Any:
    """Nodes that copy the model, of GPUs that shard it."""
    from accelerate.parallelism_config import ParallelismConfig

    nodes = config.world_size // config.gpus_per_node
    return ParallelismConfig(dp_replicate_size=nodes, dp_shard_size=config.gpus_per_node)
