"""The training configuration of a published row, in the words of a rung.

A word that a rung does not know, or a combination that contradicts itself, leaves the row out.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any, TypeVar, get_args

from oomdoctor.records.configuration.config import TrainConfig
from oomdoctor.records.configuration.faults import config_faults
from oomdoctor.records.facts.choices import (
    Attention,
    AutocastDtype,
    Checkpointing,
    Dtype,
    KbitPrepare,
    Method,
    Quantization,
)
from oomdoctor.records.facts.dtypes import TRAINED_NAMES
from published.code import NotExpressibleError, Row, is_qwen_1, keeps_gradients, release_of

Word = TypeVar("Word")
_DTYPES: dict[Any, Dtype] = dict(TRAINED_NAMES)  # type: ignore[arg-type]
_AUTOCAST: dict[Any, AutocastDtype] = {
    None: "none",
    "none": "none",
    "bfloat16": "bfloat16",
    "bf16": "bfloat16",
    "float16": "float16",
    "fp16": "float16",
}
_METHODS: dict[Any, Method] = {name: name for name in get_args(Method)}
_ATTENTION: dict[Any, Attention] = {name: name for name in get_args(Attention)}
_CHECKPOINTING: dict[Any, Checkpointing] = {
    **{name: name for name in get_args(Checkpointing)},
    True: "full",
    False: "none",
}
# fp4 has the bytes of nf4: four bits a weight and the same constants of blocks.
_QUANTIZATION: dict[Any, Quantization] = {
    "nf4": "nf4",
    "fp4": "nf4",
    "int8": "int8",
    "llm.int8": "int8",
}
_KBIT_PREPARE: dict[str, KbitPrepare] = {
    **{name: name for name in get_args(KbitPrepare)},
    "trl_norms_fp32": "norms",
}
# modeling_qwen.py: the linear layers of Qwen 1 by those of Qwen2 that do the same.
_LAYERS_OF_QWEN_1 = {
    "c_attn": ("q_proj", "k_proj", "v_proj"),
    "w1": ("up_proj",),
    "w2": ("gate_proj",),
    "c_proj": ("o_proj", "down_proj"),
}
_OPTIMIZERS = {
    "adamw": "adamw_torch",
    "adamw_hf": "adamw_torch",  # with the adaptation "single-tensor AdamW"
    "adam_8bit": "adamw_8bit",  # one class of bitsandbytes with another default
}


def train_config(row: Row) -> TrainConfig:
    """The rung that a row ran.

    Raises:
        NotExpressibleError: a rung cannot say it.
        KeyError: the row lacks a setting.
    """
    quantized = _quantized(row)
    config = TrainConfig(
        method="qlora" if quantized and row["method"] == "lora" else _method(row),
        weights_dtype=_word(_DTYPES, row, "weights_dtype"),
        autocast_dtype=_word(_AUTOCAST, row, "autocast"),
        optimizer=_OPTIMIZERS.get(row["optimizer"], str(row["optimizer"])),
        attention=_attention(row),
        activation_checkpointing=_word(_CHECKPOINTING, row, "grad_ckpt"),
        micro_batch_size=_whole(row, "micro_batch"),
        sequence_length=_whole(row, "seq_len"),
        effective_batch_size=_whole(row, "micro_batch") * _micro_steps(row),
        **_lora(row),
        **quantized,
    )
    faults = config_faults(config)
    if faults:
        raise NotExpressibleError("; ".join(f"{key} {what}" for key, what in faults))
    _check_compute_dtype(row, config)
    return config


def _word(words: Mapping[Any, Word], row: Row, key: str) -> Word:
    value = row[key]
    if isinstance(value, str | bool | None) and value in words:
        return words[value]
    raise NotExpressibleError(f"{key} {value!r}, which no rung has")


def _whole(row: Row, key: str) -> int:
    if isinstance(row[key], int):
        return int(row[key])
    raise NotExpressibleError(f"{key} {row[key]!r}, which is no whole number")


def _method(row: Row) -> Method:
    return _word(_METHODS, row, "method")


def _attention(row: Row) -> Attention:
    """What ran, or what transformers chose by itself: sdpa since 4.36, before it eager."""
    release = release_of(row, "transformers")
    if row["attn"] is None and release is not None:
        return "sdpa" if release >= (4, 36) else "eager"
    return _word(_ATTENTION, row, "attn")


def _lora(row: Row) -> dict[str, Any]:
    """The keys of LoRA; alpha changes no size, and peft's default stands for a missing dropout."""
    if row["method"] == "full":
        return {}
    rank, targets = _whole(row, "lora_r"), row["lora_targets"]
    if not targets:
        raise NotExpressibleError("LoRA whose targets are not told")
    return {
        "lora_rank": rank,
        "lora_alpha": row.get("lora_alpha") or rank,
        "lora_dropout": row.get("lora_dropout") or 0.0,
        "lora_targets": targets if isinstance(targets, str) else _targets(row, targets),
    }


def _targets(row: Row, names: Sequence[str]) -> tuple[str, ...]:
    """The names of layers, those that only Qwen 1 has in the words of Qwen2."""
    known = _LAYERS_OF_QWEN_1 if is_qwen_1(row) else {}
    return tuple(name for told in names for name in known.get(told, (told,)))


def _quantized(row: Row) -> dict[str, Any]:
    """The keys of a quantised base; without them peft's preparation is what a training calls."""
    quant = row.get("quant")
    if quant is None:
        return {}
    if quant["backend"] == "gptq":
        raise NotExpressibleError("GPTQ kernels, whose group size and workspaces are not published")
    if quant["backend"] not in ("bnb", "bitsandbytes"):
        raise NotExpressibleError(f"weights quantised by {quant['backend']}")
    return {
        "quantization": _word(_QUANTIZATION, quant, "type"),
        "double_quant": bool(quant.get("double_quant")),
        "kbit_prepare": _kbit_prepare(row),
    }


def _kbit_prepare(row: Row) -> KbitPrepare:
    """By the first word of what the row says, such as "none (no fp32 upcast)"."""
    told = str(row.get("kbit_prepare") or "peft")
    known = _KBIT_PREPARE.get(re.split(r"[\s.(:]", told)[0])
    if known is None:
        raise NotExpressibleError(f"kbit_prepare {told!r}, which no rung has")
    return known


def _check_compute_dtype(row: Row, config: TrainConfig) -> None:
    """A rung multiplies 4-bit weights in the dtype of autocast, without it in that of weights."""
    told = (row.get("quant") or {}).get("compute_dtype")
    if config.quantization != "nf4" or told is None:
        return
    autocast = config.autocast_dtype
    used = config.weights_dtype if autocast == "none" else autocast
    if _DTYPES.get(told) != used:
        raise NotExpressibleError(f"4-bit products in {told}, where a rung computes in {used}")


def _micro_steps(row: Row) -> int:
    """Where gradients stay between steps, a step finds them as the second micro-step does."""
    return max(row.get("grad_accum") or 1, 2 if keeps_gradients(row) else 1)
