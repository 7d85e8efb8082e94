"""What code ran a published row: the adaptations of `old_code` that it needs, or why none do.

Everything follows from what the row says: its stack, the versions, the type of the model, the
features. Where a version is not told, the torch of that time stands for it; where neither is, the
code is taken to be today's.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any

Row = Mapping[str, Any]
Release = tuple[int, int]

# Stacks whose models are not those of transformers and that no adaptation gives.
_OWN_MODELS = frozenset(
    ("unsloth", "megatron", "nemo", "torchtitan", "composer", "mlx", "maxtext", "gpt-neox")
)
# Stacks whose step is not that of transformers' Trainer.
_OWN_STEP = frozenset(("litgpt", "torchtune"))
# What changes no shape: `seq_len` is what a row of a batch comes to, packed or not.
_NEUTRAL = frozenset(("packed", "packing", "unpacked", "padded", "gradient_accumulation"))
_EXPERT_COUNTS = ("num_experts", "num_local_experts", "n_routed_experts", "moe_num_experts")
_LIT_GPT = {
    "method": "lora",
    "quant": None,
    "weights_dtype": "bfloat16",
    "autocast": None,
    "grad_ckpt": False,
    "attn": "sdpa",
}


class NotExpressibleError(Exception):
    """A row that cannot be predicted as it ran; the text says why."""


def release_of(row: Row, library: str) -> Release | None:
    """The first version in what a row says of a library: (4, 15) of "4.15-4.16 era"."""
    found = re.search(r"(\d+)\.(\d+)", str((row.get("versions") or {}).get(library, "")))
    return (int(found[1]), int(found[2])) if found else None


def older_than(row: Row, transformers: Release, torch: Release) -> bool:
    """Whether a row ran before this transformers; `torch` is the release of that time."""
    known = release_of(row, "transformers")
    if known is not None:
        return known < transformers
    known = release_of(row, "torch")
    return known is not None and known < torch


def keeps_gradients(row: Row) -> bool:
    """Whether `zero_grad` fills with zeros: `set_to_none` became the default in torch 2.0."""
    torch = release_of(row, "torch")
    return torch < (2, 0) if torch else older_than(row, (4, 27), (2, 0))


def adaptations(row: Row) -> Iterator[str]:
    """The names in `old_code.adaptations.ADAPTATIONS` under which the row is predicted."""
    stack, model_type = row.get("stack"), row["config"]["model_type"]
    if stack == "litgpt":
        yield "lit-gpt"
    elif is_qwen_1(row):
        yield "loss of Qwen 1"
    elif _has_loss_of_transformers(row) and older_than(row, (4, 49), (2, 6)):
        yield "shifted logits"
    if row["method"] == "lora" and _keeps_adapters_like_base(row):
        yield "adapters like the base"
    if model_type == "mixtral" and older_than(row, (5, 0), (2, 10)):
        yield "linear experts"
    if model_type == "bert" and _before_4_17(row):
        yield "BERT 4.15 on torch 1.10"
    if row["optimizer"] == "adamw_hf":
        yield "single-tensor AdamW"
    if "8bit" in row["optimizer"]:
        if not _keeps_embeddings_in_32_bits(row):
            yield "8-bit states throughout"
        if _has_blocks_of_2048(row):
            yield "8-bit states in blocks of 2048"
    if _uses_lowest_of_equal_blocks(row):
        yield "lowest of equal blocks"


def check_code(row: Row) -> None:
    """Raises NotExpressibleError: models, kernels or states that no adaptation gives."""
    stack, config = str(row.get("stack")), row["config"]
    features = set(map(str, row.get("features") or ())) - _NEUTRAL
    if stack == "litgpt":
        features.discard("chunked_ce")
        _check_lit_gpt(row)
    if stack.lower() in _OWN_MODELS:
        raise NotExpressibleError(f"the models of {stack}, which no adaptation gives")
    if features:
        names = ", ".join(sorted(features))
        raise NotExpressibleError(f"kernels or code that no adaptation gives: {names}")
    if row["optimizer"].startswith("torchao"):
        raise NotExpressibleError(
            "states that are tensor subclasses of torchao, which the simulator cannot follow"
        )
    if any((row.get(key) or 1) != 1 for key in ("num_gpus", "world_size")):
        raise NotExpressibleError("more than one GPU")
    model_type = config["model_type"]
    if _before_4_17(row) and model_type != "bert":
        raise NotExpressibleError(f"{model_type} of transformers below 4.17, only BERT is adapted")
    separate = any(config.get(key) for key in _EXPERT_COUNTS) and model_type != "mixtral"
    if separate and older_than(row, (5, 0), (2, 10)):
        raise NotExpressibleError(
            f"{model_type} below transformers 5 has a module for each expert, only Mixtral's are "
            "adapted"
        )


def _check_lit_gpt(row: Row) -> None:
    for key, wanted in _LIT_GPT.items():
        if row.get(key) != wanted:
            raise NotExpressibleError(f"lit-gpt with {key} {row.get(key)!r}, which is not adapted")
    config = row["config"]
    heads = config.get("num_attention_heads")
    if config["model_type"] != "llama" or config.get("num_key_value_heads", heads) != heads:
        raise NotExpressibleError("lit-gpt's model is adapted for Llama with as many keys as heads")
    if config.get("attention_bias") or config.get("mlp_bias"):
        raise NotExpressibleError("lit-gpt's model is adapted without biases")
    if sorted(row.get("lora_targets") or ()) != ["q_proj", "v_proj"]:
        raise NotExpressibleError("lit-gpt's LoRA is adapted for queries and values")


def _has_loss_of_transformers(row: Row) -> bool:
    """Whether the loss is that of transformers' causal models: a model may bring its own code."""
    own_loss = row.get("stack") in _OWN_STEP or "remote code" in str(row.get("note"))
    return row["task"] == "causal_lm" and not own_loss


def is_qwen_1(row: Row) -> bool:
    """Qwen brought its own code until Qwen1.5; a row has the config of the equal Qwen2."""
    return row["task"] == "causal_lm" and str(row["model_id"]).startswith("Qwen/Qwen-")


def _keeps_adapters_like_base(row: Row) -> bool:
    """Whether peft left adapters in the type of the base: it makes them fp32 since 0.12."""
    if row.get("stack") in _OWN_STEP:
        return False
    known = release_of(row, "peft")
    return known < (0, 12) if known else older_than(row, (4, 43), (2, 4))


def _has_blocks_of_2048(row: Row) -> bool:
    """Whether bitsandbytes kept 8-bit states in the larger blocks: it did until 0.43."""
    known = release_of(row, "bitsandbytes")
    return known < (0, 44) if known else older_than(row, (4, 45), (2, 5))


def _uses_lowest_of_equal_blocks(row: Row) -> bool:
    """Whether PyTorch used the free block with the lowest address: it did until 2.11."""
    torch = release_of(row, "torch")
    return torch < (2, 12) if torch else older_than(row, (5, 9), (2, 12))


def _before_4_17(row: Row) -> bool:
    return older_than(row, (4, 17), (1, 11))


def _keeps_embeddings_in_32_bits(row: Row) -> bool:
    """Whether the Trainer asks for 32-bit states of embeddings, as it does today.

    From 4.33 (the lowest that was read) to 4.51 it looked for a class Adam8bit, which it no longer
    made: github huggingface/transformers#37331. A row that names a class of bitsandbytes made the
    optimizer itself.
    """
    made_by_hand = "bitsandbytes adam" in str(row.get("optimizer_raw")).lower()
    if row.get("stack") in _OWN_STEP or made_by_hand:
        return False
    known = release_of(row, "transformers")
    if known is not None and known < (4, 33):
        return True
    return not older_than(row, (4, 52), (2, 7))
