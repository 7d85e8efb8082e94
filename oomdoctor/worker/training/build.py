"""Build a job's model, its adapter, and the Trainer whose step is measured.

transformers, peft, accelerate and bitsandbytes do the work, as in real training. This module passes
the rung's values to them and raises `UnsupportedError` if one of them, or the device, cannot do
what is needed. What techniques add to it, and when, is in `order`.
"""

from __future__ import annotations

import tempfile
from contextlib import nullcontext
from typing import TYPE_CHECKING

import torch

from oomdoctor.records.configuration.config import TrainConfig, is_zero, steps_in_backward
from oomdoctor.records.configuration.faults import Where, card_lacks, unsupported
from oomdoctor.records.facts.attention import ATTENTIONS
from oomdoctor.records.facts.dtypes import dtype_bytes
from oomdoctor.records.facts.optimizers import OPTIMIZERS
from oomdoctor.records.job.model import ON_TEXT_ALONE
from oomdoctor.records.job.result import ProbeJob
from oomdoctor.worker.protocol import OnHost, UnsupportedError, refused
from oomdoctor.worker.replacing import installed, module_if_there
from oomdoctor.worker.training import optimizers, unsloth
from oomdoctor.worker.training.loading import load_model
from oomdoctor.worker.training.model_config import load_config
from oomdoctor.worker.training.objectives.images import why_text_alone
from oomdoctor.worker.training.objectives.sound import why_without_sound
from oomdoctor.worker.training.objectives.task import built_job
from oomdoctor.worker.training.order import act_at, scales_gradients
from oomdoctor.worker.training.setup import Books, OnPhase, Setup
from oomdoctor.worker.training.sharding import engine_arguments, prepare
from oomdoctor.worker.training.trl import arguments_class, objective_arguments

if TYPE_CHECKING:
    from transformers import PretrainedConfig, TrainingArguments


def import_libraries(config: TrainConfig | None = None) -> None:
    """Import libraries before the rung's memory is watched.

    Some of their modules make tables when they are imported, which are not memory of the device.
    """
    if config is not None and config.library == "unsloth" and installed("unsloth"):
        unsloth.import_unsloth()
    for name in ("bitsandbytes", "peft"):
        module_if_there(name)


def build(
    job: ProbeJob,
    device: torch.device,
    on_phase: OnPhase | None = None,
    model_config: PretrainedConfig | None = None,
    on_host: OnHost = nullcontext,
) -> Setup:
    """Build everything that one training step needs, on `device`.

    The Trainer's step calls `on_phase` at the end of each forward pass. `model_config` replaces the
    model's configuration, to simulate fewer layers. Tensors that are offloaded to the host are made
    inside `on_host`, so that a trace does not count them if the device also holds CPU tensors.

    Raises:
        UnsupportedError: a library, the device or the architecture cannot do what the rung asks.
    """
    job = built_job(job)
    config = job.config
    check_supported(config, job.device_type, simulated=job.mode == "simulate")
    setup = Setup(job, device, on_phase, on_host)
    act_at("before", setup)
    setup.model_config = model_config or load_config(job.model)
    if job.model.task == "image-text-to-text" and (
        reason := why_text_alone(config, setup.model_config)
    ):
        setup.notes.append(f"trained on text alone, without images: {reason}")
    elif job.model.task == "speech-seq2seq" and (reason := why_without_sound(config, setup)):
        setup.notes.append(f"trained on text alone, without sound: {reason}")
    elif job.model.task in ON_TEXT_ALONE and hasattr(setup.model_config, "text_config"):
        setup.notes.append("trained on text alone, without what else this class takes")
    setup.arguments = _arguments(setup)  # DeepSpeed shards a model while it is built
    if config.library == "unsloth":
        setup.model = unsloth.load_model(setup)
    else:
        setup.model, attention = load_model(setup)
        setup.fell_back_to_eager = attention != config.attention
    setup.model.config.use_cache = False
    if setup.fell_back_to_eager:
        setup.notes.append("the architecture has no sdpa attention; it falls back to eager")
    act_at("model", setup)
    trainer = setup.trainer
    # Liger's kernels are in the model already. With this set, evaluation skips the logits.
    setup.arguments.use_liger_kernel = config.loss == "liger"
    trainer.current_gradient_accumulation_steps = setup.arguments.gradient_accumulation_steps
    if config.sharding == "none":
        setup.optimizer = optimizers.create(trainer)
        act_at("optimizer", setup)
        setup.model, optimizer = trainer.accelerator.prepare(trainer.model, setup.optimizer)
        if setup.around is not None:
            setup.model = setup.around(setup.model)
    else:
        setup.model, optimizer = prepare(trainer, config)
    trainer.optimizer, trainer.model_wrapped = optimizer, setup.model
    setup.books = Books(torch.tensor(0.0, device=device))
    return setup


def attention_implementation(setup: Setup) -> str:
    """transformers' name of the attention that runs; empty if the model does not say."""
    if setup.config.library == "unsloth":
        return ""  # it decides in each forward pass, and the configuration does not say how
    if setup.fell_back_to_eager:
        return "eager"
    config = getattr(setup.model, "config", setup.model_config)
    return str(getattr(config, "_attn_implementation", None) or "")


def _arguments(setup: Setup) -> TrainingArguments:
    """The Trainer's arguments of a rung. With several GPUs this connects the ranks."""
    config, job = setup.config, setup.job
    computes: set[str] = {config.autocast_dtype}
    if config.library == "unsloth":
        computes = {unsloth.autocast_dtype(config)}
    if is_zero(config):  # it trains 16-bit weights in mixed precision
        computes.add(config.weights_dtype)
    with refused("the Trainer rejects this configuration", ValueError, ImportError, TypeError):
        return arguments_class(config)(
            output_dir=tempfile.gettempdir(),  # exists: a Trainer would make its folder
            per_device_train_batch_size=config.micro_batch(),
            per_device_eval_batch_size=job.eval_batch_size,
            gradient_accumulation_steps=config.accumulation_steps(),
            optim=config.optimizer,
            max_grad_norm=0.0 if steps_in_backward(config) else 1.0,
            bf16="bfloat16" in computes,
            fp16="float16" in computes and not scales_gradients(job),
            use_cpu=setup.device.type == "cpu",
            torch_compile=config.compile and not setup.simulated,
            label_names=["labels"],
            report_to=[],
            disable_tqdm=True,
            save_strategy="no",
            seed=job.seed,
            **optimizers.arguments(config),
            **engine_arguments(config, dtype_bytes(config.weights_dtype)),
            **objective_arguments(config),
        )


def check_supported(config: TrainConfig, device_type: str, *, simulated: bool = False) -> None:
    """Check before anything is built. A simulation needs no kernels, only what builds the model.

    Raises:
        UnsupportedError: it is not supported; the text says why and what to do.
    """
    row = OPTIMIZERS.get(config.optimizer)
    if config.offload == "optimizer" and (row is None or not row.steps_on_host):
        raise UnsupportedError(
            f'{config.optimizer} only updates on the GPU; use offload = "optimizer" with '
            "adamw_torch_fused, or use paged_adamw_8bit, whose states move to the host by "
            "themselves"
        )
    on_cpu = device_type == "cpu"
    places: dict[Where, bool] = {
        "anywhere": True,
        "cpu": on_cpu,
        "simulated": simulated,
        "run": not simulated,
        "worker": True,
    }
    for where, applies in places.items():
        if applies and (reason := unsupported(config, where, installed)) is not None:
            raise UnsupportedError(reason)
    if steps_in_backward(config) and config.accumulation_steps() > 1:
        raise UnsupportedError(
            "a step in the backward pass cannot accumulate gradients; make effective_batch_size "
            "the micro-batch size"
        )
    if not simulated:
        own = None
        if not on_cpu and torch.cuda.is_available():
            own = "{}.{}".format(*torch.cuda.get_device_capability())
        lacking = None if on_cpu else card_lacks(config, own)
        if lacking is not None:
            raise UnsupportedError(lacking)
        _check_attention(config, device_type)


def _check_attention(config: TrainConfig, device_type: str) -> None:
    row = ATTENTIONS[config.attention]
    if row.module is None:
        return
    if device_type == "cpu":
        raise UnsupportedError(f"{row.name} needs a GPU")
    if not installed(row.module):
        raise UnsupportedError(
            f"{row.name} needs the package {row.package} ({row.install}); "
            "sdpa already includes a flash kernel"
        )
    plain = config.weights_dtype == "float32" and config.autocast_dtype == "none"
    if plain and row.sixteen_bit_only:
        raise UnsupportedError(
            f"{row.name} computes in 16 bits only; set weights_dtype or autocast_dtype"
        )
