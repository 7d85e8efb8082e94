"""LoRA on a plain or a quantized base model, with peft."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch.nn import Module

from oomdoctor.records.configuration.adapters import lora_settings
from oomdoctor.records.configuration.config import TrainConfig, by_bitsandbytes, is_cast_by_peft
from oomdoctor.records.facts.choices import Dtype
from oomdoctor.records.job.model import Task
from oomdoctor.worker.protocol import UnsupportedError
from oomdoctor.worker.training.layers import convolutions, named_targets, trains_inside
from oomdoctor.worker.training.objectives.images import TOWERS
from oomdoctor.worker.training.setup import without_adapter

if TYPE_CHECKING:
    from peft import PeftModel
    from transformers import PreTrainedModel

_PEFT_TASKS: dict[Task, str] = {
    "causal-lm": "CAUSAL_LM",
    "sequence-classification": "SEQ_CLS",
    "seq2seq-lm": "SEQ_2_SEQ_LM",
}


def add_adapter(model: PreTrainedModel, config: TrainConfig, task: Task) -> PeftModel:
    """Add a trainable LoRA adapter to the model and freeze everything else.

    A quantized base model is prepared first, as the rung's `kbit_prepare` says.

    Raises:
        UnsupportedError: the architecture has none of the target modules.
    """
    from peft import LoraConfig, get_peft_model, prepare_model_for_kbit_training

    if is_cast_by_peft(config):
        model = prepare_model_for_kbit_training(model, use_gradient_checkpointing=False)
    else:
        model.requires_grad_(False)
        if by_bitsandbytes(config) and config.kbit_prepare == "norms":
            for name, module in model.named_modules():
                if "norm" in name.rsplit(".", 1)[-1].lower():
                    module.to(torch.float32)
    _check_saved(model, config)
    _check_parameters(model, config)
    settings = lora_settings(config, "use_dora", "use_rslora")
    if config.lora_targets == "attention":
        settings["target_modules"] = _attention_targets(model)
    if config.vision == "frozen":
        settings["exclude_modules"] = rf".*\b({'|'.join(TOWERS)})\b.*"
    targets = settings["target_modules"]
    try:
        if task == "seq2seq-lm" and not model.config.is_encoder_decoder:
            task = "causal-lm"  # a decoder that writes about sound
        adapted = get_peft_model(model, LoraConfig(**settings, task_type=_PEFT_TASKS.get(task)))
    except (ValueError, RuntimeError, TypeError) as error:
        if "out of memory" in str(error):
            raise
        refusal = f"peft cannot put LoRA on {targets}"
        takes = named_targets(model, task) if targets == "all-linear" else ()
        if takes:
            raise UnsupportedError(f"{refusal}; lora_targets={'+'.join(takes)} works") from error
        raise UnsupportedError(_why_not(refusal, error, base=type(model).__name__)) from error
    _watch_own_layers(adapted, type(model).__module__)
    if config.adapter_dtype != "default":
        cast_trained(adapted, config.adapter_dtype)
    return adapted


def _why_not(refusal: str, error: Exception, base: str) -> str:
    """Why peft refuses LoRA on any layers that could be named."""
    if isinstance(error, NotImplementedError) and "get_input_embeddings" in str(error):
        return f"peft asks for get_input_embeddings, which {base} does not have; use method=full"
    if "No modules were targeted" in str(error):
        return f"{base} has no layer on which peft puts LoRA; use method=full"
    return f"{refusal}: {error}"


def _watch_own_layers(adapted: PeftModel, modeling: str) -> None:
    """Say so where peft adds to what only looks like a linear layer: a router, groups of layers.

    Classes of the model's own file may derive from Linear and return something else.
    """
    layers = [
        (path.rpartition(".")[2], layer.get_base_layer())
        for path, layer in adapted.named_modules()
        if hasattr(layer, "get_base_layer")
    ]
    own = {name for name, base in layers if type(base).__module__ == modeling}
    others = "+".join(sorted({name for name, _ in layers} - own))

    def check(base: Module, inputs: tuple[torch.Tensor, ...], output: object) -> None:
        shape = (*inputs[0].shape[:-1], base.out_features)
        if not isinstance(output, torch.Tensor) or output.shape != shape:
            raise UnsupportedError(
                f"peft cannot put LoRA on {type(base).__name__}, which is not a plain linear "
                f"layer; lora_targets={others} works"
            )

    for name, base in layers:
        if name in own and isinstance(base, torch.nn.Linear):
            base.register_forward_hook(check)


def how_to_reach(model: Module, config: TrainConfig) -> str:
    """What to set where no gradient reaches an adapter.

    One of the pooler alone goes onto convolutions instead. Layers that compute their own gradients
    need inputs with gradients: the embeddings are trained too.
    """
    if config.method == "full":
        return "freeze less of it"
    base = without_adapter(model)
    if not trains_inside(base):
        names = convolutions(base, config.lora_rank)
        return f"set lora_targets={'+'.join(names)}" if names else "use method=full"
    embeddings = base.get_input_embeddings()
    path = next(path for path, module in base.named_modules() if module is embeddings)
    return f"set modules_to_save={path.rpartition('.')[2]} to train the embeddings too"


def cast_trained(model: Module, dtype: Dtype) -> None:
    """Keep what is trained beside the frozen base in one dtype.

    The lengths that DoRA learns stay in float32, as in TRL: 16 bits would round their updates away.
    """
    for name, parameter in model.named_parameters():
        if parameter.requires_grad and "lora_magnitude_vector" not in name:
            parameter.data = parameter.data.to(getattr(torch, dtype))


def _check_saved(model: Module, config: TrainConfig) -> None:
    """peft ignores names that match no module, so a typing error would train nothing more."""
    names = {part for name, _ in model.named_modules() for part in (name, name.rsplit(".", 1)[-1])}
    for wanted in config.modules_to_save:
        if wanted not in names:
            raise UnsupportedError(
                f"the model has no module {wanted}; modules_to_save needs names such as "
                f"{' and '.join(_trained_whole(model)) or 'score'}"
            )


def _check_parameters(model: Module, config: TrainConfig) -> None:
    """peft ignores names that match no parameter, so a typing error would train nothing more."""
    names = [name for name, _ in model.named_parameters()]
    for wanted in config.lora_target_parameters:
        if not any(name == wanted or name.endswith(f".{wanted}") for name in names):
            stacked = {
                name.rpartition(".")[2] for name, p in model.named_parameters() if p.dim() > 2
            }
            example = f"; such as {' and '.join(sorted(stacked))}" if stacked else ""
            raise UnsupportedError(f"the model has no parameter {wanted}{example}")


def _trained_whole(model: Module) -> list[str]:
    """The names of the embeddings and the output head."""
    head = model.get_output_embeddings()
    names = {
        name.rpartition(".")[2]: None
        for name, module in model.named_modules()
        if isinstance(module, torch.nn.Embedding) or module is head
    }
    return list(names)


def _attention_targets(model: Module) -> list[str]:
    """Names of the linear layers inside attention modules (attn, attention)."""
    linear = ("Linear", "Conv1D")
    names = {
        name.rsplit(".", 1)[-1]
        for name, module in model.named_modules()
        if "att" in name.lower() and any(word in type(module).__name__ for word in linear)
    }
    if not names:
        raise UnsupportedError(
            "the model has no known attention projections; set lora_targets to module names"
        )
    return sorted(names)
