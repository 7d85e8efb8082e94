"""Suggestions for a mistyped key or value of a rung, the most usual first."""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Mapping

from oomdoctor.records.facts.attention import ATTENTIONS
from oomdoctor.records.facts.dtypes import TRAINED_NAMES
from oomdoctor.records.facts.optimizers import RECIPE_NAMES, optimizer_named

_MOST = 3
# What transformers, peft and people call the keys of a rung.
_OTHER_KEYS = {
    "micro_batch_size": ("batch_size", "batch", "per_device_train_batch_size", "micro_batch"),
    "effective_batch_size": ("gradient_accumulation_steps", "grad_accum", "train_batch_size"),
    "sequence_length": ("seq_len", "max_length", "max_seq_length", "max_seq_len", "block_size"),
    "activation_checkpointing": ("gradient_checkpointing", "checkpointing", "ckpt"),
    "lora_rank": ("r", "rank", "lora_r", "lora_dim"),
    "lora_alpha": ("alpha",),
    "lora_dropout": ("dropout",),
    "lora_targets": ("target_modules", "targets", "lora_target_modules"),
    "fp8": ("float8", "fp8_backend", "fp8_recipe"),
    "use_dora": ("dora",),
    "use_rslora": ("rslora",),
    "modules_to_save": ("trainable_modules", "train_embeddings", "lora_modules_to_save"),
    "adapter_dtype": ("lora_dtype", "autocast_adapter_dtype", "adapters_dtype"),
    "frozen_layers": ("freeze_layers", "freeze", "num_frozen_layers", "freeze_trainable_layers"),
    "weights_dtype": ("dtype", "torch_dtype", "precision"),
    "autocast_dtype": ("bf16", "fp16", "amp", "mixed_precision"),
    "optimizer": ("optim", "optimiser"),
    "optimizer_rank": ("galore_rank", "apollo_rank", "optim_rank"),
    "optimizer_in_backward": ("optimizer_in_bwd", "in_backward", "fused_backward_pass"),
    "attention": ("attn_implementation", "attn", "flash_attention"),
    "quantization": ("load_in_4bit", "load_in_8bit", "bits", "quant", "quantisation"),
    "double_quant": ("bnb_4bit_use_double_quant",),
    "loss": ("use_liger_kernel", "liger"),
    "objective": ("trainer", "task", "stage", "rlhf", "loss_type"),
    "reference": ("ref_model", "precompute_ref_log_probs", "reference_model"),
    "vision": ("freeze_vision_tower", "vision_tower", "freeze_vision"),
    "images": ("num_images", "images_per_sample"),
    "image_size": ("resolution", "max_pixels", "image_resolution"),
    "num_generations": ("group_size", "generations"),
    "vllm_gpu_memory_utilization": ("gpu_memory_utilization", "vllm_utilization"),
    "completion_length": ("max_completion_length",),
    "packing": ("pack", "sample_packing", "padding_free", "neat_packing"),
    "padding": ("pad", "pad_to_max_length", "padded", "pad_to_sequence_len"),
    "library": ("framework", "backend", "unsloth", "use_unsloth"),
    "compile": ("torch_compile",),
    "method": ("peft", "adapter"),
}
# What people call the values of a key.
_OTHER_VALUES: dict[str, dict[str, tuple[str, ...]]] = {
    "method": {
        "full": ("fft", "sft", "finetune", "full-finetune", "none"),
        "lora": ("peft", "adapter", "dora"),
    },
    "activation_checkpointing": {
        "full": ("true", "yes", "on", "1", "all", "enabled"),
        "none": ("false", "no", "off", "0"),
    },
    "quantization": {
        "nf4": ("4bit", "4-bit", "int4", "fp4", "4", "bnb4", "q4"),
        "int8": ("8bit", "8-bit", "8", "llm.int8"),
    },
    "loss": {
        "liger": ("true", "fused", "liger-kernel"),
        "chunked": ("chunked_nll", "chunks", "trl"),
        "default": ("false", "none", "nll"),
    },
    "autocast_dtype": {"none": ("false", "no", "off"), "bfloat16": ("true", "yes", "on", "amp")},
    "attention": {"flash_attention_2": ("flash", "flash2", "flash_attn")},
    "fp8": {"torchao": ("true", "ao", "float8"), "transformer_engine": ("te",)},
    "sharding": {"zero3": ("deepspeed", "3"), "fsdp": ("full_shard", "fsdp2")},
    "offload": {"optimizer": ("true", "cpu"), "none": ("false", "no")},
    "allocator": {"expandable_segments": ("expandable", "true")},
}


def nearest(
    word: str,
    known: Iterable[str],
    others: Mapping[str, tuple[str, ...]] | None = None,
    alike: int = 1,
) -> str:
    """` (did you mean X?)`, or nothing if no known word is similar.

    The order of `known` is kept among words that contain the typed one, so the most usual comes
    first. `others` are other names of known words. Of words that are only spelled alike, at
    most `alike` are named.
    """
    typed, names = word.strip().lower(), list(known)
    meant = [name for name, spelled in (others or {}).items() if typed in spelled]
    inside = [name for name in names if typed and typed in name.lower()]
    close = difflib.get_close_matches(typed, names, alike or 1, 0.6)
    found = list(dict.fromkeys([*meant, *(inside or close)]))[:_MOST]
    if not found:
        return ""
    *most, last = found
    return f" (did you mean {', '.join(most)} or {last}?)" if most else f" (did you mean {last}?)"


def nearest_key(word: str, known: Iterable[str]) -> str:
    """The suggestion for a mistyped key."""
    return nearest(word, known, _OTHER_KEYS)


def nearest_value(key: str, word: str, known: Iterable[str]) -> str:
    """The suggestion for a mistyped value of a key."""
    if key == "optimizer":
        row = None if any(word.lower() in name for name in RECIPE_NAMES) else optimizer_named(word)
        return nearest(word, known, {row.name: (word.lower(),)} if row is not None else {}, _MOST)
    others = dict(_OTHER_VALUES.get(key, {}))
    if key.endswith("_dtype") and word.lower() in TRAINED_NAMES:
        others[TRAINED_NAMES[word.lower()]] = (word.lower(),)
    if key == "attention":
        spelled = {name: row.spellings for name, row in ATTENTIONS.items() if row.spellings}
        others = {**spelled, **{k: v + spelled.get(k, ()) for k, v in others.items()}}
    return nearest(word, known, others)
