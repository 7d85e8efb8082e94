"""Train on several GPUs, as transformers' Trainer does it: DDP, FSDP and DeepSpeed ZeRO.

The engines are those of the user's environment; nothing of them is repeated here. accelerate
prepares a training for its engine, in the order of the Trainer's own loop: FSDP1 makes the
optimizer from the sharded model, FSDP2 shards the parameters of an optimizer that exists, and
DeepSpeed makes its own from it.

Each rank gets its part of synthetic weights, without the whole model on any device. Weights are
declared in host memory that nothing touches, as transformers does on all ranks but the first.
accelerate then loads them one parameter at a time: the whole parameter comes to the device, and
each rank keeps its part. That is done here with random values in place of a checkpoint.
"""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from dataclasses import replace
from itertools import pairwise
from typing import TYPE_CHECKING

import torch
from torch.nn import Module
from torch.optim import Optimizer

from oomdoctor.records.configuration.config import TrainConfig, by_ulysses, is_fsdp, is_zero
from oomdoctor.stacks.engines import engine_settings, mesh_settings
from oomdoctor.worker.protocol import UnsupportedError, refused
from oomdoctor.worker.replacing import replaced
from oomdoctor.worker.training import optimizers
from oomdoctor.worker.training.synthetic import STANDARD_DEVIATION

if TYPE_CHECKING:
    from accelerate import Accelerator
    from accelerate.utils import FullyShardedDataParallelPlugin
    from transformers import Trainer


def _load(
    accelerator: Accelerator, model: Module, full_sd: dict[str, object], cpu_offload: bool = False
) -> Module:
    """Parameters made on the device, in place of those that accelerate loads from a checkpoint."""
    from torch.distributed.tensor import DTensor, distribute_tensor

    parts: dict[str, torch.Tensor] = {}
    for name, sharded in model.state_dict().items():
        whole = torch.empty(sharded.size(), dtype=sharded.dtype, device=accelerator.device)
        if whole.is_floating_point():
            with torch.no_grad():
                whole.normal_(std=STANDARD_DEVIATION)
        part = whole
        if isinstance(sharded, DTensor):
            part = distribute_tensor(whole, sharded.device_mesh, sharded.placements)
        if part.is_floating_point():
            part = part.to(sharded.dtype)
        parts[name] = part.to("cpu") if cpu_offload else part
    model.load_state_dict(parts, assign=True)
    return model


def moved_with_values() -> AbstractContextManager[None]:
    """Let FSDP 2 make a declared model on the device, where it would move one with weights.

    It moves all of a unit before it shards it (`_move_states_to_device`). Memory of the host that
    nothing has touched would come as zeros, and not be seen where host and device are one.
    """
    from torch.distributed.fsdp._fully_shard import _fsdp_init

    move = _fsdp_init._move_states_to_device

    def made(
        parameters: list[torch.nn.Parameter], buffers: list[torch.Tensor], device: torch.device
    ) -> None:
        for parameter in parameters:
            value = torch.empty_like(parameter.data, device=device)
            parameter.data = value.normal_(std=STANDARD_DEVIATION)
        move([], buffers, device)

    return replaced(_fsdp_init, "_move_states_to_device", made)


def fill(model: Module) -> None:
    """Give random values to the parts that a rank holds, in place."""
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.is_floating_point():
                parameter.normal_(std=STANDARD_DEVIATION)


_STEPS = 1000  # of the training that DeepSpeed is told; any number does


def prepare(trainer: Trainer, config: TrainConfig) -> tuple[torch.nn.Module, Optimizer]:
    """The model as its engine wraps it, and the optimizer that belongs to it.

    Raises:
        UnsupportedError: the engine or its version cannot do what the rung asks.
    """
    accelerator = trainer.accelerator
    if by_ulysses(config):
        with refused(
            "Ulysses cannot share the sequences of this model", ValueError, AssertionError
        ):
            return _by_deepspeed(trainer)
    if is_zero(config):
        return _by_deepspeed(trainer)
    if not is_fsdp(config):
        optimizer = optimizers.create(trainer)
        trainer._wrap_model(trainer.model)  # it only chooses DDP's settings
        model, optimizer = accelerator.prepare(trainer.model, optimizer)
        return model, optimizer
    plugin = fsdp_plugin(trainer)
    _check_version(plugin, config)
    _set_precision(plugin, config)
    if config.fsdp_version == 1:
        return _by_fsdp1(trainer)
    from accelerate.utils import fsdp_utils

    optimizer = optimizers.create(trainer)
    with replaced(fsdp_utils, "fsdp2_load_full_state_dict", _load):
        model, optimizer = accelerator.prepare(trainer.model, optimizer)
    if config.prefetch == "forward":
        _gather_ahead(model)
    return model, optimizer


def fsdp_plugin(trainer: Trainer) -> FullyShardedDataParallelPlugin:
    """accelerate's settings of FSDP, which it leaves out where there is no accelerator."""
    from accelerate.utils import DistributedType, FullyShardedDataParallelPlugin

    state = trainer.accelerator.state
    if getattr(state, "fsdp_plugin", None) is None:
        settings = getattr(trainer.args, "fsdp_plugin_args", None)
        if settings is None:
            raise UnsupportedError(
                "FSDP on the CPU needs transformers 5: pip install -U transformers"
            )
        plugin = FullyShardedDataParallelPlugin(**settings)
        if state._mixed_precision != "no":
            plugin.set_mixed_precision(state._mixed_precision)
        state.distributed_type, state.fsdp_plugin = DistributedType.FSDP, plugin
        trainer.is_fsdp_enabled = True
    return state.fsdp_plugin


def _check_version(plugin: FullyShardedDataParallelPlugin, config: TrainConfig) -> None:
    """Older versions of transformers and accelerate set up FSDP 1, whatever the rung asks for."""
    version = getattr(plugin, "fsdp_version", 1)
    if version != config.fsdp_version:
        raise UnsupportedError(
            f"these versions of transformers and accelerate set up FSDP {version}: set "
            f"fsdp_version = {version}, or pip install -U transformers accelerate"
        )


def _by_deepspeed(trainer: Trainer) -> tuple[torch.nn.Module, Optimizer]:
    from deepspeed.accelerator import get_accelerator
    from transformers.integrations.deepspeed import deepspeed_init

    # DeepSpeed does so while it sets up, and the peak of the load would be lost.
    accelerator = get_accelerator()
    for name in ("peak_memory_stats", "max_memory_cached", "max_memory_allocated"):
        setattr(accelerator, f"reset_{name}", lambda *_: None)
    optimizer, _ = deepspeed_init(trainer, num_training_steps=_STEPS)
    model, optimizer = trainer.accelerator.prepare(trainer.model, optimizer)
    trainer.deepspeed = model
    return model, optimizer


def _by_fsdp1(trainer: Trainer) -> tuple[torch.nn.Module, Optimizer]:
    from transformers.trainer import _is_peft_model

    accelerator = trainer.accelerator
    if _is_peft_model(trainer.model):
        from peft.utils.other import fsdp_auto_wrap_policy

        # The Trainer does so too: each adapter is a unit.
        plugin = accelerator.state.fsdp_plugin
        plugin.auto_wrap_policy = fsdp_auto_wrap_policy(trainer.model)
    model = accelerator.prepare(trainer.model)
    fill(model)
    trainer.model = trainer.model_wrapped = model
    optimizer = accelerator.prepare(optimizers.create(trainer))
    return model, optimizer


def _set_precision(plugin: FullyShardedDataParallelPlugin, config: TrainConfig) -> None:
    """Reduce gradients in the dtype of the rung, if it names one."""
    if config.reduce_dtype == "default":
        return
    dtype = getattr(torch, config.reduce_dtype)
    policy = plugin.mixed_precision_policy
    if policy is None:
        from torch.distributed.fsdp import MixedPrecision, MixedPrecisionPolicy

        kind = MixedPrecision if config.fsdp_version == 1 else MixedPrecisionPolicy
        policy = kind(reduce_dtype=dtype)
    else:
        policy = replace(policy, reduce_dtype=dtype)
    plugin.mixed_precision_policy = policy


def _gather_ahead(model: torch.nn.Module) -> None:
    """Gather the weights of the next layer while one computes, in the forward pass too."""
    from torch.distributed.fsdp import FSDPModule

    units = [module for module in model.modules() if isinstance(module, FSDPModule)][1:]
    if not units:
        raise UnsupportedError("no layer is sharded on its own, so none can be gathered ahead")
    for unit, following in pairwise(units):
        unit.set_modules_to_forward_prefetch([following])


def without_reduction(trainer: Trainer, model: torch.nn.Module) -> AbstractContextManager[object]:
    """The context of a micro-step that is not the last one, as the Trainer chooses it."""
    plugin = getattr(trainer.accelerator.state, "deepspeed_plugin", None)
    settings = trainer.accelerator.gradient_state.plugin_kwargs
    if plugin is not None or settings.get("sync_each_batch", False):
        return nullcontext()
    waiting: AbstractContextManager[object] = trainer.accelerator.no_sync(model=model)
    return waiting


def engine_arguments(config: TrainConfig, gradient_bytes: int) -> dict[str, object]:
    """Values for `TrainingArguments`; empty on one GPU.

    `gradient_bytes` is the size of an element of a gradient, for DDP's buckets.
    """
    arguments = engine_settings(config, gradient_bytes)
    if mesh := mesh_settings(config):
        from accelerate.parallelism_config import ParallelismConfig

        handler = {}
        if "sp_size" in mesh:
            from accelerate.utils import DeepSpeedSequenceParallelConfig

            handler["sp_handler"] = DeepSpeedSequenceParallelConfig(
                sp_attn_implementation=config.attention
            )
        arguments["parallelism_config"] = ParallelismConfig(**mesh, **handler)
    return arguments
