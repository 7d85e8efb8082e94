"""From a job to a model, its adapter and the Trainer whose step is measured.

transformers, peft, accelerate and bitsandbytes do the work as they do in a real training; this
module only passes the rung's values on and says `unsupported` where one of them cannot.
"""

from __future__ import annotations

import json
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from oomdoctor.records.config import TrainConfig
from oomdoctor.records.model import ModelSpec, Task
from oomdoctor.records.result import ProbeJob
from oomdoctor.worker import optimizers, synthetic
from oomdoctor.worker.unsupported import UnsupportedError

AUTO_CLASSES: dict[Task, str] = {
    "causal-lm": "AutoModelForCausalLM",
    "masked-lm": "AutoModelForMaskedLM",
    "sequence-classification": "AutoModelForSequenceClassification",
    "seq2seq-lm": "AutoModelForSeq2SeqLM",
    "image-classification": "AutoModelForImageClassification",
}
_PEFT_TASKS: dict[Task, str] = {
    "causal-lm": "CAUSAL_LM",
    "sequence-classification": "SEQ_CLS",
    "seq2seq-lm": "SEQ_2_SEQ_LM",
}


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


def build(job: ProbeJob, device: Any, on_phase: Any = None) -> Setup:
    """Everything one training step needs, on `device`.

    `on_phase` is called by the Trainer's step at the end of each forward pass.

    Raises:
        UnsupportedError: a library, the device or the architecture cannot do what the rung asks.
    """
    config = job.config
    _check_supported(config, job.device_type)
    notes: list[str] = []
    if config.allocator == "expandable_segments" and device.type == "cuda":
        _set_expandable_segments()
    model_config = load_config(job.model)
    model = _load_model(job, model_config, device, notes)
    model.config.use_cache = False
    if config.method != "full":
        model = _add_adapter(model, config, job.model.task)
    if config.activation_checkpointing == "full":
        _enable_checkpointing(model)
    trainer = _trainer(model, config, job, on_phase)
    model, optimizer = trainer.accelerator.prepare(trainer.model, optimizers.create(trainer))
    trainer.optimizer, trainer.model_wrapped = optimizer, model
    return Setup(model, trainer, device, job.model.task, config, model_config, notes)


def load_config(spec: ModelSpec) -> Any:
    """The transformers configuration of a model that was found, without the network.

    Raises:
        UnsupportedError: this transformers does not know the architecture.
    """
    from transformers import AutoConfig

    with tempfile.TemporaryDirectory() as folder:
        place, revision = _config_place(spec, Path(folder))
        try:
            config = AutoConfig.from_pretrained(
                place, revision=revision, trust_remote_code=spec.trust_remote_code
            )
        except (KeyError, ValueError) as error:
            raise UnsupportedError(
                f"this transformers does not know the architecture {spec.model_type!r}: {error}"
            ) from error
    # Synthetic weights are quantised by the rung, never by the checkpoint's own settings.
    if getattr(config, "quantization_config", None) is not None:
        del config.quantization_config
    text = config.get_text_config()
    if getattr(text, "pad_token_id", None) is None and spec.task == "sequence-classification":
        eos = getattr(text, "eos_token_id", None)
        text.pad_token_id = config.pad_token_id = eos if isinstance(eos, int) else 0
    return config


def _config_place(spec: ModelSpec, scratch: Path) -> tuple[str, str | None]:
    """Where transformers reads the configuration from, and the revision there.

    The content that was found, in a folder of its own; but a model with code of its own has to be
    read from where its code is.
    """
    if spec.trust_remote_code and "auto_map" in spec.config:
        has_code = spec.path is not None and any(Path(spec.path).glob("*.py"))
        return (spec.path or "", None) if has_code else (spec.id, spec.revision)
    (scratch / "config.json").write_text(json.dumps(dict(spec.config)))
    return str(scratch), None


def auto_class(task: Task) -> Any:
    """The transformers Auto class of a task."""
    import transformers

    return getattr(transformers, AUTO_CLASSES[task])


def _check_supported(config: TrainConfig, device_type: str) -> None:
    later = {
        "compile": config.compile,
        "offload": config.offload != "none",
        "sharding": config.sharding != "none" or config.world_size > 1,
        f'activation_checkpointing = "{config.activation_checkpointing}"': (
            config.activation_checkpointing not in ("none", "full")
        ),
    }
    for name, asked in later.items():
        if asked:
            raise UnsupportedError(f"{name} is not measured by this version of oomdoctor")
    if config.autocast_dtype == "float16" and device_type == "cpu":
        raise UnsupportedError("fp16 with the gradient scaler needs a GPU; use bfloat16 on the CPU")
    if config.loss == "liger":
        if not _installed("liger_kernel"):
            raise UnsupportedError("needs Liger kernels: pip install liger-kernel")
        if device_type == "cpu":
            raise UnsupportedError("Liger kernels need a GPU")
    if config.quantization != "none" and not _installed("bitsandbytes"):
        raise UnsupportedError("quantised weights need bitsandbytes: pip install bitsandbytes")
    if config.method != "full" and not _installed("peft"):
        raise UnsupportedError("LoRA needs peft: pip install peft")
    _check_attention(config, device_type)


def _check_attention(config: TrainConfig, device_type: str) -> None:
    wanted = config.attention
    if wanted not in ("flash_attention_2", "flash_attention_3"):
        return
    if device_type == "cpu":
        raise UnsupportedError(f"{wanted} needs a GPU")
    module, package = {
        "flash_attention_2": ("flash_attn", "flash-attn"),
        "flash_attention_3": ("flash_attn_interface", "flash-attn-3 (from the hopper folder)"),
    }[wanted]
    if not _installed(module):
        raise UnsupportedError(
            f"{wanted} needs the package {package}; sdpa has a flash kernel of its own"
        )
    if config.weights_dtype == "float32" and config.autocast_dtype == "none":
        raise UnsupportedError(f"{wanted} computes in 16 bits; set weights_dtype or autocast_dtype")


def _installed(module: str) -> bool:
    import importlib.util

    return importlib.util.find_spec(module) is not None


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


def _load_model(job: ProbeJob, model_config: Any, device: Any, notes: list[str]) -> Any:
    config = job.config
    quantization = quantization_config(config) if config.quantization != "none" else None
    attention: str = config.attention
    while True:
        try:
            if job.weights == "pretrained":
                return _load_pretrained(job, quantization, attention, device)
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


def _load_pretrained(job: ProbeJob, quantization: Any, attention: str, device: Any) -> Any:
    config, spec = job.config, job.model
    kwargs: dict[str, Any] = {} if quantization is None else {"quantization_config": quantization}
    local = spec.source == "local"
    return auto_class(spec.task).from_pretrained(
        spec.path if local else spec.id,
        revision=None if local else spec.revision,
        trust_remote_code=spec.trust_remote_code,
        attn_implementation=attention,
        device_map={"": str(device)},
        **{synthetic.dtype_keyword(): dtype_of(config.weights_dtype)},
        **kwargs,
    )


def _add_adapter(model: Any, config: TrainConfig, task: Task) -> Any:
    import torch
    from peft import LoraConfig, get_peft_model, prepare_model_for_kbit_training

    if config.quantization != "none" and config.kbit_prepare == "peft":
        model = prepare_model_for_kbit_training(model, use_gradient_checkpointing=False)
    else:
        for parameter in model.parameters():
            parameter.requires_grad_(False)
        if config.quantization != "none" and config.kbit_prepare == "norms":
            for name, module in model.named_modules():
                if "norm" in name.rsplit(".", 1)[-1].lower():
                    module.to(torch.float32)
    targets: str | list[str]
    if config.lora_targets == "attention":
        targets = _attention_targets(model)
    elif isinstance(config.lora_targets, str):
        targets = config.lora_targets
    else:
        targets = list(config.lora_targets)
    try:
        return get_peft_model(
            model,
            LoraConfig(
                r=config.lora_rank,
                lora_alpha=config.lora_alpha,
                lora_dropout=config.lora_dropout,
                target_modules=targets,
                task_type=_PEFT_TASKS.get(task),
            ),
        )
    except ValueError as error:
        raise UnsupportedError(f"peft cannot put LoRA on {targets}: {error}") from error


def _attention_targets(model: Any) -> list[str]:
    """Names of the linear layers inside modules called attention (attn, attention)."""
    linear = ("Linear", "Conv1D")
    found = {
        name.rsplit(".", 1)[-1]
        for name, module in model.named_modules()
        if "att" in name.lower() and any(word in type(module).__name__ for word in linear)
    }
    if not found:
        raise UnsupportedError("no attention projections were found; name the lora_targets")
    return sorted(found)


def _enable_checkpointing(model: Any) -> None:
    # transformers 5 renamed the method; peft and remote code may only know the old name.
    enable = getattr(model, "activation_checkpointing_enable", None)
    try:
        if enable is None:
            model.gradient_checkpointing_enable({"use_reentrant": False})
        else:
            enable({"use_reentrant": False})
    except ValueError as error:
        raise UnsupportedError(f"no activation checkpointing: {error}") from error


def _trainer(model: Any, config: TrainConfig, job: ProbeJob, on_phase: Any) -> Any:
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
    try:
        arguments = TrainingArguments(
            output_dir=str(Path(tempfile.gettempdir()) / "oomdoctor-unused"),
            per_device_train_batch_size=size,
            per_device_eval_batch_size=job.eval_batch_size,
            gradient_accumulation_steps=config.accumulation_steps(),
            optim=config.optimizer,
            max_grad_norm=1.0,
            bf16=config.autocast_dtype == "bfloat16",
            fp16=config.autocast_dtype == "float16",
            use_cpu=job.device_type == "cpu",
            use_liger_kernel=config.loss == "liger",
            label_names=["labels"],
            report_to=[],
            disable_tqdm=True,
            save_strategy="no",
            seed=job.seed,
        )
        trainer = PhasedTrainer(model=model, args=arguments)
    except (ValueError, ImportError) as error:
        raise UnsupportedError(f"the Trainer refuses this rung: {error}") from error
    trainer.current_gradient_accumulation_steps = arguments.gradient_accumulation_steps
    return trainer
