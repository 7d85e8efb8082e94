"""The techniques of a training, a row each, in the order in which they act while it is built.

`build` loads the model, makes the optimizer and lets accelerate or an engine prepare both. All that
a rung adds to that is a row. A row may need what those above it did: linear layers are replaced
when adapters are there, and checkpoints go around what was replaced.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import nullcontext
from typing import Literal, NamedTuple

import torch

from oomdoctor.records.configuration.config import (
    by_bitsandbytes,
    has_own_step,
    is_fsdp,
    trains_with_trl,
    uses_host,
)
from oomdoctor.records.facts.optimizers import compiles_its_step
from oomdoctor.records.job.result import ProbeJob
from oomdoctor.worker.protocol import UnsupportedError
from oomdoctor.worker.training import optimizers, unsloth
from oomdoctor.worker.training.loading import note_what_stays_whole
from oomdoctor.worker.training.objectives.contrastive import contrastive
from oomdoctor.worker.training.objectives.images import freeze_vision
from oomdoctor.worker.training.objectives.packing import check_packing, check_padding
from oomdoctor.worker.training.objectives.policy import policy
from oomdoctor.worker.training.objectives.task import cross_entropy, lacks_loss, note_generation
from oomdoctor.worker.training.setup import Setup
from oomdoctor.worker.training.techniques import compilation, replaced_layers
from oomdoctor.worker.training.techniques.adapter import add_adapter
from oomdoctor.worker.training.techniques.checkpointing import enable_checkpointing
from oomdoctor.worker.training.techniques.freezing import freeze
from oomdoctor.worker.training.techniques.offload import keep_activations_on_host
from oomdoctor.worker.training.techniques.precision import allow_tf32
from oomdoctor.worker.training.techniques.routing import check_routing
from oomdoctor.worker.training.techniques.scaler import check_scalable, scale_gradients
from oomdoctor.worker.training.trl import make_trl_trainer, phased

Mark = Literal["before", "model", "optimizer"]
"""When a technique acts: before the model is placed on the device; on the loaded model, which gets
its adapters and its Trainer there; after the optimizer was made, if no engine makes its own."""


class Technique(NamedTuple):
    """What a job adds to its training at a mark, and which jobs do."""

    mark: Mark
    of: Callable[[ProbeJob], bool]
    act: Callable[[Setup], None]


def act_at(mark: Mark, setup: Setup) -> None:
    """Let the techniques of a job act, those of one mark.

    Raises:
        UnsupportedError: the device, the architecture or a library cannot do what one needs.
    """
    for technique in TECHNIQUES:
        if technique.mark == mark and technique.of(setup.job):
            technique.act(setup)


def scales_gradients(job: ProbeJob) -> bool:
    """accelerate uses no gradient scaler on the CPU, so a simulation adds one."""
    return job.config.autocast_dtype == "float16" and job.mode == "simulate"


def _compiles(job: ProbeJob) -> bool:
    return job.config.compile or compiles_its_step(job.config.optimizer)


def _has_adapter(job: ProbeJob) -> bool:
    return job.config.method != "full"


def _adds_adapter(job: ProbeJob) -> bool:
    """Whether the adapter is not added by TRL's trainer or by Unsloth."""
    return _has_adapter(job) and not trains_with_trl(job.config) and not _is_by_unsloth(job)


def _is_by_unsloth(job: ProbeJob) -> bool:
    return job.config.library == "unsloth"


def _scales_adapters(job: ProbeJob) -> bool:
    return _has_adapter(job) and job.config.autocast_dtype == "float16"


def _checkpoints(job: ProbeJob) -> bool:
    """Unsloth does it itself."""
    return job.config.activation_checkpointing != "none" and not _is_by_unsloth(job)


def _note_times(setup: Setup) -> None:
    setup.notes.append("no time is predicted: the bandwidth to host memory is unknown")


def _grow_segments(setup: Setup) -> None:
    if setup.device.type == "cuda":
        torch.cuda.memory._set_allocator_settings("expandable_segments:True")


def _add_adapter(setup: Setup) -> None:
    with setup.on_host() if is_fsdp(setup.config) else nullcontext():
        setup.model = add_adapter(setup.model, setup.config, setup.job.model.task)


def _make_trainer(setup: Setup) -> None:
    from transformers import Trainer

    try:
        kind = contrastive(Trainer, setup) if setup.task == "embedding" else Trainer
        kind = policy(kind, setup) if has_own_step(setup.config) else kind
        kind = phased(kind, setup.on_phase)
        own = {"compute_loss_func": cross_entropy} if lacks_loss(setup) else {}
        setup.trainer = kind(model=setup.model, args=setup.arguments, **own)
    except (ValueError, ImportError, RuntimeError) as error:
        # accelerate before FSDP 2 takes FSDP only where there is a GPU; other errors are failures.
        if isinstance(error, RuntimeError) and "no available devices" not in str(error):
            raise
        raise UnsupportedError(f"the Trainer rejects this configuration: {error}") from error


TECHNIQUES: tuple[Technique, ...] = (
    Technique("before", lambda job: job.mode == "simulate" and uses_host(job.config), _note_times),
    Technique("before", _compiles, compilation.prepare),
    Technique("before", lambda job: job.config.allocator != "default", _grow_segments),
    Technique("before", lambda job: job.config.tf32, allow_tf32),
    Technique("model", lambda job: by_bitsandbytes(job.config), note_what_stays_whole),
    Technique("model", lambda job: job.config.packing != "none", check_packing),
    Technique("model", lambda job: job.config.padding != "none", check_padding),
    Technique("model", lambda job: job.config.compile, compilation.note_mask),
    Technique("model", lambda job: job.config.objective == "grpo", note_generation),
    Technique("model", lambda job: job.config.routing == "worst", check_routing),
    Technique("model", lambda job: job.config.vision == "frozen", freeze_vision),
    Technique("model", lambda job: job.config.frozen_layers > 0, freeze),
    Technique("model", lambda job: trains_with_trl(job.config), make_trl_trainer),
    Technique("model", lambda job: _has_adapter(job) and _is_by_unsloth(job), unsloth.add_adapter),
    Technique("model", _adds_adapter, _add_adapter),
    Technique("model", _scales_adapters, check_scalable),
    Technique("model", lambda job: job.config.fp8 == "torchao", replaced_layers.convert_to_torchao),
    Technique("model", lambda job: job.config.loss == "liger", replaced_layers.apply_kernels),
    Technique("model", _checkpoints, enable_checkpointing),
    Technique("model", lambda job: job.config.offload == "activations", keep_activations_on_host),
    Technique("model", lambda job: not trains_with_trl(job.config), _make_trainer),
    Technique("model", scales_gradients, scale_gradients),
    Technique(
        "model",
        lambda job: job.config.fp8 == "transformer_engine",
        replaced_layers.convert_to_transformer_engine,
    ),
    Technique("optimizer", lambda job: job.mode == "simulate", optimizers.note_what_is_left_out),
    Technique("optimizer", lambda job: job.config.offload == "optimizer", optimizers.move_to_host),
    Technique(
        "optimizer", lambda job: job.config.optimizer_in_backward, optimizers.move_to_backward
    ),
)
