"""LoRA on a plain or a quantized base model, with peft."""

from __future__ import annotations

from typing import TYPE_CHECKING

from oomdoctor.records.config import TrainConfig
from oomdoctor.records.model import Task
from oomdoctor.worker.protocol.unsupported import UnsupportedError

if TYPE_CHECKING:
    from peft import PeftModel
    from torch.nn import Module
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
    except (ValueError, RuntimeError) as error:
        if "out of memory" in str(error):
            raise
        raise UnsupportedError(f"peft cannot put LoRA on {targets}: {error}") from error


def without_adapter(model: Module) -> PreTrainedModel:
    """The transformers model inside peft's wrapper, or the model itself."""
    return model.get_base_model() if hasattr(model, "get_base_model") else model


def _attention_targets(model: Module) -> list[str]:
    """Names of the linear layers inside attention modules (attn, attention)."""
    linear = ("Linear", "Conv1D")
    found = {
        name.rsplit(".", 1)[-1]
        for name, module in model.named_modules()
        if "att" in name.lower() and any(word in type(module).__name__ for word in linear)
    }
    if not found:
        raise UnsupportedError(
            "the model has no known attention projections; set lora_targets to module names"
        )
    return sorted(found)
