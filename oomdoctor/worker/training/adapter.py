"""LoRA on a plain or a quantised base, by peft."""

from __future__ import annotations

from typing import Any

from oomdoctor.records.config import TrainConfig
from oomdoctor.records.model import Task
from oomdoctor.worker.protocol.unsupported import UnsupportedError

_PEFT_TASKS: dict[Task, str] = {
    "causal-lm": "CAUSAL_LM",
    "sequence-classification": "SEQ_CLS",
    "seq2seq-lm": "SEQ_2_SEQ_LM",
}


def add_adapter(model: Any, config: TrainConfig, task: Task) -> Any:
    """The model with a LoRA adapter to train and everything else frozen.

    A quantised base is prepared first, as the rung's `kbit_prepare` says.

    Raises:
        UnsupportedError: the architecture has none of the wanted target modules.
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
