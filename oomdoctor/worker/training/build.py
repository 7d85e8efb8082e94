"""From a job to a model, its adapter and the Trainer whose step is measured.

transformers, peft, accelerate and bitsandbytes do the work as they do in a real training; this
module only passes the rung's values on and says `unsupported` where one of them cannot.
"""

from __future__ import annotations

import importlib
import tempfile
from contextlib import nullcontext, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from oomdoctor.records.config import TrainConfig
from oomdoctor.records.model import Task
from oomdoctor.records.result import ProbeJob
from oomdoctor.worker.protocol.unsupported import UnsupportedError
from oomdoctor.worker.tracing.tensors import logical_numel
from oomdoctor.worker.training import compilation, liger, optimizers, synthetic
from oomdoctor.worker.training.adapter import add_adapter
from oomdoctor.worker.training.checkpointing import enable_checkpointing
from oomdoctor.worker.training.model_config import auto_class, load_config
from oomdoctor.worker.training.offload import OnHost, uses_host
from oomdoctor.worker.training.scaler import scale_gradients
from oomdoctor.worker.training.support import check_supported

_MUCH = 0.1  # of a model's parameters


@dataclass(slots=True)
class Setup:
    """A training ready to step. `model` is what accelerate prepared, `trainer` owns the rest."""

    model: Any
    trainer: Any
    device: Any
    task: Task
    config: TrainConfig
    model_config: Any
    notes: list[str]


def import_libraries() -> None:
    """Import what a rung may need before its memory is watched.

    Some modules make tables of their own as they are imported, which are no memory of the device.
    """
    for name in ("bitsandbytes", "peft"):
        with suppress(ImportError):
            importlib.import_module(name)


def build(
    job: ProbeJob,
    device: Any,
    on_phase: Any = None,
    model_config: Any = None,
    on_host: OnHost = nullcontext,
) -> Setup:
    """Everything one training step needs, on `device`.

    `on_phase` is called by the Trainer's step at the end of each forward pass. `model_config` takes
    the place of the model's own, to simulate fewer layers. What is offloaded to the host is made
    within `on_host`, so that a trace of a device made of CPU tensors can leave it out.

    Raises:
        UnsupportedError: a library, the device or the architecture cannot do what the rung asks.
    """
    config = job.config
    simulated = job.mode == "simulate"
    check_supported(config, job.device_type, simulated=simulated)
    notes: list[str] = []
    if simulated and uses_host(config):
        notes.append("no time is predicted: nothing is known of the way to the host's memory")
    if config.compile:
        notes += compilation.prepare(device, simulated=simulated)
    if config.allocator == "expandable_segments" and device.type == "cuda":
        _set_expandable_segments()
    model_config = model_config or load_config(job.model)
    model = _load_model(job, model_config, device, notes)
    if config.quantization != "none":
        notes += _unquantised(model)
    model.config.use_cache = False
    if config.method != "full":
        model = add_adapter(model, config, job.model.task)
    if config.loss == "liger":
        liger.apply_kernels(model, notes)
    enable_checkpointing(model, config, on_host, notes)
    trainer = _trainer(model, config, job, device, on_phase)
    optimizer = optimizers.create(trainer)
    if config.offload == "optimizer":
        optimizer = optimizers.moved_to_host(optimizer, on_host, notes)
    model, optimizer = trainer.accelerator.prepare(trainer.model, optimizer)
    trainer.optimizer, trainer.model_wrapped = optimizer, model
    return Setup(model, trainer, device, job.model.task, config, model_config, notes)


def _set_expandable_segments() -> None:
    import torch

    torch.cuda.memory._set_allocator_settings("expandable_segments:True")


def dtype_of(name: str) -> Any:
    """The torch dtype with this name."""
    import torch

    return getattr(torch, name)


def quantization_config(config: TrainConfig) -> Any:
    """The bitsandbytes configuration of a rung, None for unquantised weights."""
    from transformers import BitsAndBytesConfig

    if config.quantization == "int8":
        return BitsAndBytesConfig(load_in_8bit=True)
    compute = config.weights_dtype if config.autocast_dtype == "none" else config.autocast_dtype
    return BitsAndBytesConfig(
        load_in_4bit=True,
        bnb_4bit_quant_type="nf4",
        bnb_4bit_use_double_quant=config.double_quant,
        bnb_4bit_compute_dtype=dtype_of(compute),
    )


def _unquantised(model: Any) -> list[str]:
    """What to know where much of a model is in no linear layer, as the experts of a mixture are."""
    sizes = [(p.dim() > 2 and p.is_floating_point(), logical_numel(p)) for p in model.parameters()]
    share = sum(size for is_left, size in sizes if is_left) / sum(size for _, size in sizes)
    if share < _MUCH:
        return []
    return [
        f"{share:.0%} of the parameters are in no linear layer (experts kept in one tensor), so "
        "bitsandbytes does not quantise them"
    ]


def _load_model(job: ProbeJob, model_config: Any, device: Any, notes: list[str]) -> Any:
    config = job.config
    quantization = quantization_config(config) if config.quantization != "none" else None
    attention: str = config.attention
    while True:
        try:
            if job.weights == "pretrained":
                return _load_pretrained(job, model_config, quantization, attention, device)
            return synthetic.build_model(
                auto_class(job.model.task),
                model_config,
                dtype=dtype_of(config.weights_dtype),
                attention=attention,
                quantization=quantization,
                device=device,
                seed=job.seed,
                trust_remote_code=job.model.trust_remote_code,
            )
        except RuntimeError as error:
            if "supported by the bitsandbytes" in str(error):
                raise UnsupportedError(str(error)) from error
            raise
        except (ValueError, ImportError) as error:
            if attention == "sdpa" and "scaled_dot_product_attention" in str(error):
                # What transformers does by itself when nobody names an implementation.
                attention = "eager"
                notes.append("the architecture has no sdpa attention: eager was used")
            elif "attention" in str(error) and attention != "eager":
                raise UnsupportedError(f"{attention}: {error}") from error
            else:
                raise


def _load_pretrained(
    job: ProbeJob, model_config: Any, quantization: Any, attention: str, device: Any
) -> Any:
    config, spec = job.config, job.model
    kwargs: dict[str, Any] = {} if quantization is None else {"quantization_config": quantization}
    local = spec.source == "local"
    return auto_class(spec.task).from_pretrained(
        spec.path if local else spec.id,
        config=model_config,
        revision=None if local else spec.revision,
        trust_remote_code=spec.trust_remote_code,
        attn_implementation=attention,
        device_map={"": str(device)},
        **{synthetic.dtype_keyword(): dtype_of(config.weights_dtype)},
        **kwargs,
    )


def _trainer(model: Any, config: TrainConfig, job: ProbeJob, device: Any, on_phase: Any) -> Any:
    from transformers import Trainer, TrainingArguments

    class PhasedTrainer(Trainer):  # type: ignore[misc]
        """transformers' own Trainer; only tells when the forward pass of its step is over."""

        def compute_loss(self, *args: Any, **kwargs: Any) -> Any:
            result = super().compute_loss(*args, **kwargs)
            if on_phase is not None and self.model.training:
                on_phase("backward")
            return result

    size = config.micro_batch_size
    assert isinstance(size, int)
    # accelerate leaves the gradient scaler out on the CPU, so a simulated one is put in below.
    scaled = config.autocast_dtype == "float16" and job.mode == "simulate"
    try:
        arguments = TrainingArguments(
            output_dir=str(Path(tempfile.gettempdir()) / "oomdoctor-unused"),
            per_device_train_batch_size=size,
            per_device_eval_batch_size=job.eval_batch_size,
            gradient_accumulation_steps=config.accumulation_steps(),
            optim=config.optimizer,
            max_grad_norm=1.0,
            bf16=config.autocast_dtype == "bfloat16",
            fp16=config.autocast_dtype == "float16" and not scaled,
            use_cpu=device.type == "cpu",
            torch_compile=config.compile and job.mode != "simulate",
            label_names=["labels"],
            report_to=[],
            disable_tqdm=True,
            save_strategy="no",
            seed=job.seed,
        )
        trainer = PhasedTrainer(model=model, args=arguments)
        # Its kernels are in the model by now; evaluation leaves the logits out where it is set.
        arguments.use_liger_kernel = config.loss == "liger"
    except (ValueError, ImportError) as error:
        raise UnsupportedError(f"the Trainer refuses this rung: {error}") from error
    if scaled:
        scale_gradients(trainer.accelerator)
    trainer.current_gradient_accumulation_steps = arguments.gradient_accumulation_steps
    return trainer
