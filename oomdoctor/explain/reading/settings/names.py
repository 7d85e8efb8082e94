"""Under which names programs tell a setting, and how its values are read.

One table maps the names of Trainer, TRL, accelerate, DeepSpeed, axolotl and LLaMA-Factory to the
fields of one record. A reader returns None for a value that tells nothing.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import Any

from oomdoctor.records.facts.attention import ATTENTION_NAMES
from oomdoctor.records.facts.dtypes import TRAINED_NAMES
from oomdoctor.records.facts.optimizers import optimizer_named

Reader = Callable[[Any], Any]
# The linear layers of a decoder layer, and what families call them.
ROLES = ("q", "k", "v", "o", "gate", "up", "down")
_ROLES_OF = {
    **dict.fromkeys(("q_proj", "query"), ("q",)),
    **dict.fromkeys(("k_proj", "key"), ("k",)),
    **dict.fromkeys(("v_proj", "value"), ("v",)),
    **dict.fromkeys(("o_proj", "out_proj", "dense"), ("o",)),
    **dict.fromkeys(("qkv_proj", "c_attn", "query_key_value", "Wqkv"), ("q", "k", "v")),
    **dict.fromkeys(("gate_proj", "w1"), ("gate",)),
    **dict.fromkeys(("up_proj", "w3", "fc1", "c_fc", "dense_h_to_4h"), ("up",)),
    **dict.fromkeys(("down_proj", "w2", "fc2", "dense_4h_to_h"), ("down",)),
    "gate_up_proj": ("gate", "up"),
}


def _integer(value: Any) -> int | None:
    if isinstance(value, bool):
        return None
    if isinstance(value, str) and re.fullmatch(r"\d{1,9}", value.strip()):
        value = int(value)
    # A model_max_length of 1e30 means "no limit".
    return value if isinstance(value, int) and 0 < value < 10**8 else None


def _count(value: Any) -> int | None:
    return 0 if value in (0, "0") and not isinstance(value, bool) else _integer(value)


def _flag(value: Any) -> bool | None:
    if isinstance(value, str):
        return {"true": True, "yes": True, "false": False, "no": False}.get(value.strip().lower())
    return value if isinstance(value, bool) else None


def _not(value: Any) -> bool | None:
    flag = _flag(value)
    return None if flag is None else not flag


def _true(word: str) -> Reader:
    """Reads a switch that means `word` when it is on and tells nothing when it is off."""
    return lambda value: word if _flag(value) else None


def _word(words: Mapping[str, str]) -> Reader:
    return lambda value: words.get(str(value).strip().lower().removeprefix("torch."))


def _text(value: Any) -> str | None:
    if isinstance(value, str) and value.strip() and value.strip().lower() not in ("auto", "none"):
        return value.strip()
    return None


def _optimizer(value: Any) -> str | None:
    text = _text(value)
    if text is None:
        return None
    word = text.rpartition(".")[2].lower()
    row = optimizer_named(word)
    return word if row is None else row.name


def _bits(value: Any) -> str | None:
    return {"4": "nf4", "8": "int8"}.get(str(value).strip())


def _quantised(value: Any) -> str | None:
    return "qlora" if _bits(value) else None


def _adapter(value: Any) -> str | None:
    text = str(value).strip().lower()
    return {"dora": "lora", "freeze": "full", "peft": "lora"}.get(
        text, text if text in ("full", "lora", "qlora") else None
    )


def _any_rank(value: Any) -> str | None:
    return "lora" if _integer(value) else None


def _stage(value: Any) -> int | None:
    """The stage in the name of a DeepSpeed file, such as `ds_z3_config.json`."""
    found = re.search(r"z(?:ero)?[-_]?(?:stage)?[-_]?([0123])", str(value).lower())
    return int(found[1]) if found else None


def _fsdp(value: Any) -> bool | None:
    if isinstance(value, list | tuple):
        return bool(value)
    if isinstance(value, str) and value.strip().lower() not in ("", "false", "no"):
        return True
    return _flag(value)


def _device(value: Any) -> bool | None:
    text = str(value).strip().lower()
    return True if text in ("cpu", "nvme") else False if text == "none" else None


def _has(word: str) -> Reader:
    return lambda value: True if word in str(value).lower() else None


def _roles(value: Any) -> tuple[str, ...] | None:
    """The roles of the linear layers that adapters sit on, from names or "all-linear"."""
    names = re.findall(r"[\w-]+", value) if isinstance(value, str) else value
    if not isinstance(names, list | tuple):
        return None
    if any(str(name) in ("all", "all-linear") for name in names):
        return ROLES
    found = {role for name in names for role in _ROLES_OF.get(str(name).rpartition(".")[2], ())}
    return tuple(role for role in ROLES if role in found) or None


def _all_roles(value: Any) -> tuple[str, ...] | None:
    return ROLES if _flag(value) else None


# field of Setup -> names under which files and logs tell it, the most telling first. A name
# matches a key or the end of its dotted path, so nested files need no rows of their own.
NAMES: dict[str, tuple[tuple[str, Reader], ...]] = {
    "model": tuple(
        (name, _text)
        for name in ("model_name_or_path", "base_model", "pretrained_model_name_or_path", "model")
    ),
    "micro_batch_size": tuple(
        (name, _integer)
        for name in (
            "per_device_train_batch_size",
            "micro_batch_size",
            "train_micro_batch_size_per_gpu",
            "per_gpu_train_batch_size",
            "batch_size",
        )
    ),
    "sequence_length": tuple(
        (name, _integer)
        for name in (
            "max_length",
            "max_seq_length",
            "sequence_len",
            "cutoff_len",
            "sequence_length",
            "max_seq_len",
            "seq_length",
            "seq_len",
            "block_size",
            "model_max_length",
        )
    ),
    "accumulation_steps": (("gradient_accumulation_steps", _integer),),
    "eval_batch_size": (
        ("per_device_eval_batch_size", _integer),
        ("eval_batch_size", _integer),
    ),
    "eval_accumulation_steps": (("eval_accumulation_steps", _integer),),
    "method": (
        ("adapter", _adapter),
        ("finetuning_type", _adapter),
        ("load_in_4bit", _true("qlora")),
        ("load_in_8bit", _true("qlora")),
        ("quantization_bit", _quantised),
        ("use_peft", _true("lora")),
        ("use_lora", _true("lora")),
        ("method", _adapter),
        ("lora_r", _any_rank),
        ("lora_rank", _any_rank),
    ),
    "quantization": (
        ("load_in_4bit", _true("nf4")),
        ("load_in_8bit", _true("int8")),
        ("quantization_bit", _bits),
    ),
    "lora_rank": (("lora_r", _integer), ("lora_rank", _integer)),
    "lora_targets": (
        ("lora_target_linear", _all_roles),
        ("lora_target_modules", _roles),
        ("lora_target", _roles),
        ("target_modules", _roles),
    ),
    "weights_dtype": (
        ("torch_dtype", _word(TRAINED_NAMES)),
        ("model_dtype", _word(TRAINED_NAMES)),
        ("dtype", _word(TRAINED_NAMES)),
        ("pure_bf16", _true("bfloat16")),
        ("bfloat16", _true("bfloat16")),
        ("weights_dtype", _word(TRAINED_NAMES)),
    ),
    "autocast_dtype": (
        ("bf16", _true("bfloat16")),
        ("fp16", _true("float16")),
        ("bf16.enabled", _true("bfloat16")),
        ("fp16.enabled", _true("float16")),
        ("mixed_precision", _word({**TRAINED_NAMES, "no": "none"})),
    ),
    "optimizer": (("optim", _optimizer), ("optimizer", _optimizer), ("optimizer.type", _optimizer)),
    "checkpointing": (
        ("gradient_checkpointing", _flag),
        ("disable_gradient_checkpointing", _not),
        ("enable_gradient_checkpointing", _flag),
        ("fsdp_activation_checkpointing", _flag),
        ("activation_checkpointing", _flag),
    ),
    "attention": (
        ("attn_implementation", _word(ATTENTION_NAMES)),
        ("_attn_implementation", _word(ATTENTION_NAMES)),
        ("flash_attn", _word(ATTENTION_NAMES)),
        ("flash_attention", _true("flash_attention_2")),
        ("use_flash_attention_2", _true("flash_attention_2")),
        ("sdp_attention", _true("sdpa")),
        ("eager_attention", _true("eager")),
    ),
    "liger": (
        ("use_liger_kernel", _flag),
        ("use_liger", _flag),
        ("use_liger_loss", _flag),
        ("enable_liger_kernel", _flag),
        ("liger_fused_linear_cross_entropy", _flag),
    ),
    "packing": (("packing", _flag), ("sample_packing", _flag)),
    "world_size": (
        ("world_size", _integer),
        ("num_processes", _integer),
        ("nproc_per_node", _integer),
    ),
    "zero_stage": (
        ("zero_optimization.stage", _count),
        ("zero_stage", _count),
        ("deepspeed", _stage),
    ),
    "fsdp": (
        ("fsdp", _fsdp),
        ("distributed_type", _has("fsdp")),
        ("fsdp_sharding_strategy", _fsdp),
    ),
    "offload_optimizer": (
        ("offload_optimizer.device", _device),
        ("offload_optimizer_device", _device),
    ),
    "offload_parameters": (
        ("offload_param.device", _device),
        ("offload_param_device", _device),
        ("fsdp_offload_params", _flag),
        ("cpu_offload", _flag),
    ),
    "workers": (("dataloader_num_workers", _count), ("num_workers", _count)),
    "expandable_segments": (
        ("PYTORCH_CUDA_ALLOC_CONF", _has("expandable_segments:true")),
        ("PYTORCH_ALLOC_CONF", _has("expandable_segments:true")),
        ("allocator", _has("expandable_segments:true")),
        ("expandable_segments", _flag),
    ),
}
