"""The files of LLaMA-Factory's new engine (USE_V1=1), whose names differ from its usual ones."""

from __future__ import annotations

from oomdoctor.stacks.names.peft import share, trained_whole
from oomdoctor.stacks.names.row import NotTakenError, Row
from oomdoctor.stacks.names.values import flag, integer, number, switch, targets
from oomdoctor.stacks.partial_config import PartialConfig, only

_ENGINES: dict[str, PartialConfig] = {
    "fsdp2": {"fsdp": True, "fsdp_version": 2, "distributed": "fsdp"},
}


def _model(value: object) -> PartialConfig:
    return {"first_version": True, "model": str(value)} if value else {"first_version": True}


def _adapter(value: object) -> PartialConfig:
    word = str(value).strip().lower()
    if word not in ("lora", "freeze"):
        raise NotTakenError(f"a rung has no method {value}")
    return {"method_of_first": "lora"} if word == "lora" else {"freezes": True}


def _layers(value: object) -> PartialConfig:
    return {} if value is None else {"trainable_layers": integer(value)}


def _engine(value: object) -> PartialConfig:
    word = str(value).strip().lower()
    if word not in _ENGINES:
        raise NotTakenError(f"a rung does not have the engine {value} of this file")
    return _ENGINES[word]


def _bits(value: object) -> PartialConfig:
    return {} if value is None else only(f"bits_{integer(value)}", True)


FIRST_VERSION = (
    Row("model", ("model",), _model),
    Row("peft_config.name", ("method_of_first",), _adapter),
    Row("peft_config.r", ("lora_rank",), number("", "lora_rank").read),
    Row("peft_config.lora_alpha", ("lora_alpha",), number("", "lora_alpha").read),
    Row("peft_config.lora_dropout", ("lora_dropout",), share),
    Row("peft_config.target_modules", ("lora_targets",), targets),
    Row("peft_config.modules_to_save", ("modules_to_save",), trained_whole),
    Row("peft_config.use_dora", ("use_dora",), lambda value: {"use_dora": flag(value)}),
    Row("peft_config.use_rslora", ("use_rslora",), lambda value: {"use_rslora": flag(value)}),
    Row("peft_config.freeze_trainable_layers", ("trainable_layers",), _layers),
    Row("micro_batch_size", ("micro_batch_size",), number("", "micro_batch_size").read),
    Row("global_batch_size", ("effective_batch_size",), number("", "effective_batch_size").read),
    Row("enable_activation_checkpointing", ("checkpointing",),
        switch("", "checkpointing", True, False).read),
    Row("quant_config.quantization_bit", ("bits_4", "bits_8"), _bits),
    Row("quant_config.double_quantization", ("double_quant",),
        lambda value: {"double_quant": flag(value)}),
    Row("dist_config.name", ("fsdp",), _engine),
)  # fmt: skip
