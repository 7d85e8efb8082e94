"""Build a job's model, its adapter, and the Trainer whose step is measured.

transformers, peft, accelerate and bitsandbytes do the work, as in real training. This module passes
the rung's values to them and raises `UnsupportedError` if one of them cannot do what is needed.
"""

from __future__ import annotations

import importlib
import tempfile
from contextlib import nullcontext, suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import torch

from oomdoctor.records.configuration.config import (
    TrainConfig,
    is_fsdp,
    is_zero,
    steps_in_backward,
    trains_with_trl,
    uses_host,
)
from oomdoctor.records.facts.dtypes import dtype_bytes
from oomdoctor.records.facts.optimizers import compiles_its_step
from oomdoctor.records.job.model import Task
from oomdoctor.records.job.result import ProbeJob
from oomdoctor.worker.protocol import OnHost, UnsupportedError
from oomdoctor.worker.training import optimizers, unsloth
from oomdoctor.worker.training.loading import load_model, quantization_notes
from oomdoctor.worker.training.model_config import load_config
from oomdoctor.worker.training.objectives.completions import generation_notes
from oomdoctor.worker.training.objectives.images import freeze_vision
from oomdoctor.worker.training.objectives.packing import check_packing, check_padding
from oomdoctor.worker.training.objectives.task import built_job
from oomdoctor.worker.training.sharding import engine_arguments, prepare
from oomdoctor.worker.training.support import check_supported
from oomdoctor.worker.training.techniques import compilation, replaced_layers
from oomdoctor.worker.training.techniques.adapter import add_adapter
from oomdoctor.worker.training.techniques.checkpointing import enable_checkpointing
from oomdoctor.worker.training.techniques.freezing import freeze
from oomdoctor.worker.training.techniques.offload import keep_activations_on_host
from oomdoctor.worker.training.techniques.scaler import check_scalable, scale_gradients
from oomdoctor.worker.training.trl import (
    OnPhase,
    arguments_class,
    objective_arguments,
    phased,
    trl_trainer,
)

if TYPE_CHECKING:
    from transformers import PretrainedConfig, Trainer, TrainingArguments


@dataclass(slots=True)
class Books:
    """The few numbers that the Trainer's loop keeps on the device from one step to the next.

    The loss since the last line of the log, that of the last micro-batch, and a norm. Each is a
    scalar: 2 to 4 bytes, but a block of 512 in PyTorch's allocator.
    `norm` is that of the last gradients; the Trainer forgets it when it clips the next ones.
    """

    running: torch.Tensor
    last: torch.Tensor | None = None
    norm: torch.Tensor | None = None

    def enter_loss(self) -> None:
        """Add the last loss. As the Trainer, wait for the device, and leave out what is NaN."""
        assert self.last is not None
        if not (self.last.isnan() or self.last.isinf()):
            self.running += self.last

    def logged(self) -> float:
        """The loss since the last call, as the Trainer reads it for a line of the log."""
        loss = float(self.running)
        self.running -= self.running
        return loss

    def close(self) -> None:
        """Forget what a step left."""
        self.last = self.norm = None


@dataclass(slots=True)
class Setup:
    """A training that is ready to step.

    accelerate has prepared `model`; `trainer` owns the optimizer and the rest. `fell_back_to_eager`
    is whether the architecture has no sdpa attention. `reference` is a second model that is not
    trained.
    """

    model: torch.nn.Module
    trainer: Trainer
    device: torch.device
    task: Task
    config: TrainConfig
    model_config: PretrainedConfig
    notes: list[str]
    books: Books
    fell_back_to_eager: bool = False
    reference: torch.nn.Module | None = None


def import_libraries(config: TrainConfig | None = None) -> None:
    """Import libraries before the rung's memory is watched.

    Some of their modules make tables when they are imported, which are not memory of the device.
    """
    if config is not None and config.library == "unsloth" and unsloth.is_installed():
        unsloth.import_unsloth()
    for name in ("bitsandbytes", "peft"):
        with suppress(ImportError):
            importlib.import_module(name)


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
    simulated = job.mode == "simulate"
    check_supported(config, job.device_type, simulated=simulated)
    notes: list[str] = []
    if simulated and uses_host(config):
        notes.append("no time is predicted: the bandwidth to host memory is unknown")
    if config.compile:
        notes += compilation.prepare(device, simulated=simulated)
    elif compiles_its_step(config.optimizer):
        notes += compilation.prepare_step(device, simulated=simulated)
    if config.allocator == "expandable_segments" and device.type == "cuda":
        torch.cuda.memory._set_allocator_settings("expandable_segments:True")
    model_config = model_config or load_config(job.model)
    arguments = _arguments(config, job, device)  # DeepSpeed shards a model while it is built
    by_unsloth = config.library == "unsloth"
    fell_back = False
    if by_unsloth:
        model = unsloth.load_model(job, model_config, device, notes)
    else:
        model, attention = load_model(job, model_config, device, on_host)
        fell_back = attention != config.attention
    if fell_back:
        notes.append("the architecture has no sdpa attention; it falls back to eager")
    if config.quantization != "none":
        notes += quantization_notes(model)
    model.config.use_cache = False
    check_packing(model, config, job.model.task, notes)
    check_padding(model, config, job.model.task, notes)
    notes += generation_notes(config, job.model)
    if config.vision == "frozen":
        freeze_vision(model)
    if config.frozen_layers:
        freeze(model, config.frozen_layers, notes)
    trainer: Trainer | None = None
    adapted = partial(add_adapter, config=config, task=job.model.task)
    if trains_with_trl(config):
        trainer = trl_trainer(
            model,
            arguments,
            config,
            adapted=adapted,
            reference=lambda: load_model(job, model_config, device, on_host)[0],
            on_phase=on_phase,
        )
        model = trainer.model
    elif config.method != "full" and by_unsloth:
        model = unsloth.add_adapter(model, config)
    elif config.method != "full":
        with on_host() if is_fsdp(config) else nullcontext():
            model = adapted(model)
    if config.method != "full":
        check_scalable(model, config)
    if config.fp8 == "torchao":
        replaced_layers.convert_linear_layers(model, notes, simulated=simulated)
    if config.loss == "liger":
        replaced_layers.apply_kernels(model, notes)
    if not by_unsloth:
        enable_checkpointing(model, config, on_host, notes)
    if config.offload == "activations":
        keep_activations_on_host(model, on_host)
    if trainer is None:
        trainer = _trainer(model, arguments, on_phase)
    _finish(trainer, arguments, config, job)
    if config.fp8 == "transformer_engine":
        replaced_layers.convert_to_transformer_engine(trainer.model, notes)
    if config.sharding == "none":
        optimizer = optimizers.create(trainer)
        if simulated and config.optimizer == "apollo_adamw":
            notes.append(optimizers.APOLLO_NOTE)
        if simulated and job.device_type == "cuda" and config.optimizer.startswith("galore"):
            notes.append(optimizers.GALORE_NOTE)
        if config.offload == "optimizer":
            optimizer = optimizers.moved_to_host(optimizer, on_host, notes)
        elif config.optimizer_in_backward:
            optimizer = optimizers.moved_to_backward(trainer, optimizer, notes)
        model, optimizer = trainer.accelerator.prepare(trainer.model, optimizer)
        if config.fp8 == "transformer_engine":
            model = replaced_layers.multiply_in_transformer_engine(model)
    else:
        model, optimizer = prepare(trainer, config)
    trainer.optimizer, trainer.model_wrapped = optimizer, model
    reference = getattr(trainer, "ref_model", None)
    return Setup(
        model,
        trainer,
        device,
        job.model.task,
        config,
        model_config,
        notes,
        Books(torch.tensor(0.0, device=device)),
        fell_back,
        reference,
    )


def attention_implementation(setup: Setup) -> str:
    """transformers' name of the attention that runs; empty if the model does not say."""
    if setup.config.library == "unsloth":
        return ""  # it decides in each forward pass, and the configuration does not say how
    if setup.fell_back_to_eager:
        return "eager"
    config = getattr(setup.model, "config", setup.model_config)
    return str(getattr(config, "_attn_implementation", None) or "")


def _arguments(config: TrainConfig, job: ProbeJob, device: torch.device) -> TrainingArguments:
    """The Trainer's arguments of a rung. With several GPUs this connects the ranks."""
    size = config.micro_batch_size
    assert isinstance(size, int)
    computes: set[str] = {config.autocast_dtype}
    if config.library == "unsloth":
        computes = {unsloth.autocast_dtype(config)}
    if is_zero(config):  # it trains 16-bit weights in mixed precision
        computes.add(config.weights_dtype)
    try:
        return arguments_class(config)(
            output_dir=str(Path(tempfile.gettempdir()) / "oomdoctor-unused"),
            per_device_train_batch_size=size,
            per_device_eval_batch_size=job.eval_batch_size,
            gradient_accumulation_steps=config.accumulation_steps(),
            optim=config.optimizer,
            max_grad_norm=0.0 if steps_in_backward(config) else 1.0,
            bf16="bfloat16" in computes,
            fp16="float16" in computes and not _scaled(config, job),
            use_cpu=device.type == "cpu",
            torch_compile=config.compile and job.mode != "simulate",
            label_names=["labels"],
            report_to=[],
            disable_tqdm=True,
            save_strategy="no",
            seed=job.seed,
            **optimizers.arguments(config),
            **engine_arguments(config, dtype_bytes(config.weights_dtype)),
            **objective_arguments(config),
        )
    except (ValueError, ImportError, TypeError) as error:
        raise UnsupportedError(f"the Trainer rejects this rung: {error}") from error


def _scaled(config: TrainConfig, job: ProbeJob) -> bool:
    """accelerate uses no gradient scaler on the CPU, so a simulation adds one."""
    return config.autocast_dtype == "float16" and job.mode == "simulate"


def _trainer(
    model: torch.nn.Module, arguments: TrainingArguments, on_phase: OnPhase | None
) -> Trainer:
    from transformers import Trainer

    try:
        trainer: Trainer = phased(Trainer, on_phase)(model=model, args=arguments)
    except (ValueError, ImportError) as error:
        raise UnsupportedError(f"the Trainer rejects this rung: {error}") from error
    return trainer


def _finish(
    trainer: Trainer, arguments: TrainingArguments, config: TrainConfig, job: ProbeJob
) -> None:
    """Set what `Trainer.train` would set before its first step."""
    # Liger's kernels are in the model already. With this set, evaluation skips the logits.
    arguments.use_liger_kernel = config.loss == "liger"
    if _scaled(config, job):
        scale_gradients(trainer.accelerator)
    trainer.current_gradient_accumulation_steps = arguments.gradient_accumulation_steps
