"""The settings of the engine of a rung: FSDP, DeepSpeed ZeRO or DDP.

The worker trains with them and `export` writes them, so both are the same.
"""

from __future__ import annotations

from oomdoctor.records.configuration.config import TrainConfig, is_fsdp, is_zero
from oomdoctor.records.facts.dtypes import dtype_word

_MIB = 1 << 20
_STRATEGIES = {"fsdp": "full_shard", "fsdp_grad_op": "shard_grad_op", "hybrid": "hybrid_shard"}


def engine_settings(config: TrainConfig, gradient_bytes: int) -> dict[str, object]:
    """Keyword arguments of transformers' `TrainingArguments`; empty on one GPU.

    `gradient_bytes` is the size of an element of a gradient, for DDP's buckets.
    """
    if config.sharding == "none":
        return {}
    settings: dict[str, object] = {}
    if config.sync_each_batch:
        settings["accelerator_config"] = {"gradient_accumulation_kwargs": {"sync_each_batch": True}}
    if config.sharding == "ddp" and config.bucket_elements:
        settings["ddp_bucket_cap_mb"] = max(1, config.bucket_elements * gradient_bytes // _MIB)
    if is_fsdp(config):
        settings |= {"fsdp": fsdp_word(config), "fsdp_config": fsdp_settings(config)}
        if config.offload == "parameters":
            settings["ddp_backend"] = "cuda:nccl,cpu:gloo"  # gradients are clipped on the host
    if is_zero(config):
        settings["deepspeed"] = zero_settings(config)
    return settings


def fsdp_word(config: TrainConfig) -> str:
    """What turns FSDP on. transformers before 5 knows only the names of strategies."""
    offload = " offload" if config.offload == "parameters" else ""
    strategy = "full_shard" if has_mesh(config) else _STRATEGIES[config.sharding]
    return f"{strategy} auto_wrap{offload}"


def has_mesh(config: TrainConfig) -> bool:
    """Whether FSDP 2 shards within a node and copies between nodes, or GPUs share sequences."""
    return bool(mesh_settings(config))


def mesh_settings(config: TrainConfig) -> dict[str, int]:
    """Arguments of accelerate's ParallelismConfig; empty if a plain list of ranks is enough."""
    world, shared = config.world_size, config.context_parallel_size
    if config.sharding == "hybrid" and config.fsdp_version == 2:
        shards = config.gpus_per_node
        return {"dp_replicate_size": world // shards, "dp_shard_size": shards}
    if is_fsdp(config) and shared > 1:
        return {"dp_shard_size": world // shared, "cp_size": shared}
    if is_zero(config) and shared > 1:
        return {"dp_shard_size": world // shared, "sp_size": shared}
    return {}


def fsdp_settings(config: TrainConfig) -> dict[str, object]:
    """`fsdp_config` of a rung: each layer is a unit, and the first rank loads the weights."""
    settings: dict[str, object] = {
        "version": config.fsdp_version,
        "cpu_ram_efficient_loading": True,
        "cpu_offload": config.offload == "parameters",
    }
    if config.fsdp_version == 2:
        settings["reshard_after_forward"] = config.sharding != "fsdp_grad_op"
        return settings
    return settings | {
        "reshard_after_forward": _STRATEGIES[config.sharding],
        "backward_prefetch": "no_prefetch" if config.prefetch == "none" else "backward_pre",
        "forward_prefetch": config.prefetch == "forward",
        "use_orig_params": True,
        "sync_module_states": True,
    }


def zero_settings(config: TrainConfig) -> dict[str, object]:
    """DeepSpeed's configuration of a rung; what it does not name has DeepSpeed's default.

    16-bit training keeps weights of the optimizer in fp32, as DeepSpeed always does.
    """
    computes = {config.weights_dtype, config.autocast_dtype}
    stage: dict[str, object] = {"stage": int(config.sharding[-1])}
    if config.bucket_elements:
        stage["reduce_bucket_size"] = config.bucket_elements
        stage["allgather_bucket_size"] = config.bucket_elements
    if config.prefetch == "none" and config.sharding == "zero3":
        stage["stage3_prefetch_bucket_size"] = 0
    moved = {
        "optimizer": ["offload_optimizer"],
        "parameters": ["offload_optimizer", "offload_param"],
    }
    stage |= {name: {"device": "cpu", "pin_memory": True} for name in moved.get(config.offload, ())}
    settings: dict[str, object] = {
        "train_micro_batch_size_per_gpu": "auto",
        "gradient_accumulation_steps": "auto",
        "gradient_clipping": "auto",
        "bf16": {"enabled": "bfloat16" in computes},
        "fp16": {"enabled": "float16" in computes},
        "zero_optimization": stage,
        "zero_allow_untested_optimizer": True,
        # DeepSpeed's own Adam on the host is compiled when it is first used.
        "zero_force_ds_cpu_optimizer": False,
    }
    if config.reduce_dtype != "default":
        settings["communication_data_type"] = dtype_word(config.reduce_dtype)
    return settings
