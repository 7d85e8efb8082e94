"""Settings of adapters, and the dtypes of products, of adapters and of what is trained whole."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from oomdoctor.records.configuration.config import (
    TrainConfig,
    by_bitsandbytes,
    is_cast_by_peft,
    is_zero,
)
from oomdoctor.records.facts.choices import Dtype


def lora_settings(config: TrainConfig, *switches: str) -> dict[str, Any]:
    """The arguments of peft's `LoraConfig` and of Unsloth's call; of `switches` those that are on.

    Only what a rung names, so that older versions still work.
    """
    targets, saved = config.lora_targets, config.modules_to_save
    parameters = config.lora_target_parameters
    return {
        "r": config.lora_rank,
        "lora_alpha": config.lora_alpha,
        "lora_dropout": config.lora_dropout,
        "target_modules": targets if isinstance(targets, str) else list(targets),
        **{name: True for name in switches if getattr(config, name)},
        **({"modules_to_save": list(saved)} if saved else {}),
        **({"target_parameters": list(parameters)} if parameters else {}),
    }


def kept_dtype(config: TrainConfig) -> Dtype:
    """The dtype of the adapters of a rung.

    By default peft keeps them in float32 (`autocast_adapter_dtype`), TRL's trainers for other
    objectives cast those of a quantized model to bfloat16, and DeepSpeed casts all weights except
    in ZeRO-3, which shards them as they are made.
    """
    if config.adapter_dtype != "default":
        return config.adapter_dtype
    return _recast(config) or "float32"


def saved_dtype(config: TrainConfig) -> Dtype:
    """The dtype of `modules_to_save`: peft copies them as they are."""
    if config.adapter_dtype != "default":
        return config.adapter_dtype
    prepared = is_cast_by_peft(config)
    return _recast(config) or ("float32" if prepared else config.weights_dtype)


def casts_all(config: TrainConfig) -> bool:
    """Whether DeepSpeed casts all weights of the model (`_cast_module_mixed_precision`)."""
    return config.sharding in ("zero1", "zero2")


def without_usual_dtype(config: TrainConfig) -> TrainConfig:
    """The rung without an `adapter_dtype` that it would have anyway."""
    plain, named = replace(config, adapter_dtype="default"), config.adapter_dtype
    usual = config.method == "full" or (
        kept_dtype(plain) == named and (not plain.modules_to_save or saved_dtype(plain) == named)
    )
    return plain if usual else config


def adapter_faults(config: TrainConfig) -> list[tuple[str, str]]:
    """What cannot be combined with a named dtype of adapters, as (key, sentence)."""
    named = config.adapter_dtype
    if named == "default" or config.method == "full":
        return []
    own, scaled = compute_dtype(config), config.autocast_dtype == "float16" and not is_zero(config)
    if casts_all(config):
        return [] if own == named else [("adapter_dtype", f"DeepSpeed casts adapters to {own}")]
    reason = f"the gradient scaler cannot unscale {named} gradients; use float32"
    return [("adapter_dtype", reason)] if scaled and named != "float32" else []


def _recast(config: TrainConfig) -> Dtype | None:
    """The dtype that an engine or a trainer casts everything that is trained to, if one does."""
    if casts_all(config):
        return compute_dtype(config)
    by_trl = by_bitsandbytes(config) and config.objective != "default"
    return "bfloat16" if by_trl else None


def compute_dtype(config: TrainConfig) -> Dtype:
    """The type of the matrix products: the autocast type if there is one."""
    return config.weights_dtype if config.autocast_dtype == "none" else config.autocast_dtype
