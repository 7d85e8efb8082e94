"""Rungs to export: each kind of setting that a script has to express."""

from __future__ import annotations

from typing import Any

RUNGS: dict[str, dict[str, Any]] = {
    "plain": {},
    "amp": {"weights_dtype": "float32", "autocast_dtype": "bfloat16"},
    "scaled": {"weights_dtype": "float32", "autocast_dtype": "float16"},
    "tf32": {"weights_dtype": "float32", "tf32": True},
    "checkpointed": {"activation_checkpointing": "full", "optimizer": "adamw_bnb_8bit"},
    "every-n": {"activation_checkpointing": "every_n", "checkpoint_every": 3},
    "part": {"activation_checkpointing": "mlp", "optimizer": "adafactor"},
    "lora": {"method": "lora", "lora_targets": ("q_proj", "v_proj"), "loss": "liger"},
    "attention-lora": {"method": "lora", "lora_targets": "attention", "compile": True},
    "qlora": {"method": "qlora", "quantization": "nf4", "allocator": "expandable_segments"},
    "qlora-norms": {"method": "qlora", "quantization": "int8", "kbit_prepare": "norms"},
    "dora": {"method": "lora", "use_dora": True, "modules_to_save": ("embed_tokens", "lm_head")},
    "adapters-bf16": {"method": "lora", "adapter_dtype": "bfloat16"},
    "qlora-adapters": {"method": "qlora", "quantization": "nf4", "adapter_dtype": "bfloat16"},
    "saved-fp32": {
        "method": "qlora",
        "quantization": "int8",
        "autocast_dtype": "bfloat16",
        "modules_to_save": ("lm_head",),
        "adapter_dtype": "float32",
    },
    "frozen": {"frozen_layers": 2},
    "accumulating": {"effective_batch_size": 16, "micro_batch_size": 2, "optimizer": "sgd"},
}
# What plain loops do not say; GaLore and FP8 are for the Trainer, too.
OF_TRL: dict[str, dict[str, Any]] = {
    "dpo": {"objective": "dpo", "activation_checkpointing": "full"},
    "dpo-lora": {"objective": "dpo", "method": "lora", "completion_length": 100},
    "dpo-qlora": {"objective": "dpo", "method": "qlora", "quantization": "nf4"},
    "dpo-precomputed": {"objective": "dpo", "reference": "precomputed"},
    "reward": {"objective": "reward", "method": "lora", "modules_to_save": ("embed_tokens",)},
    "grpo": {"objective": "grpo", "num_generations": 4},
    "grpo-kl": {
        "objective": "grpo",
        "num_generations": 2,
        "reference": "kl",
        "completion_length": 300,
    },
    "packed": {"packing": "packed", "attention": "flash_attention_2"},
    "padding-free": {"packing": "padding_free", "loss": "liger"},
    "padded": {"padding": "longest"},
    "padded-lora": {"padding": "max_length", "method": "lora", "loss": "chunked"},
    "packed-chunked": {"packing": "packed", "loss": "chunked", "method": "lora"},
}
OF_TRAINERS: dict[str, dict[str, Any]] = {
    "fp8": {"fp8": "torchao", "weights_dtype": "float32", "autocast_dtype": "bfloat16"},
    "galore": {"optimizer": "galore_adamw", "optimizer_rank": 8},
}
