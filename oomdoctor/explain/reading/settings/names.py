"""The names of settings that are looked for in log text, and the one under which a value is kept.

Only text is the matter here: in a log, names stand between words, so those that are common as
words, such as `model` or `stage`, are left out. What a value means is read by `training/told.py`,
with the tables of `stacks`, as that of a configuration file is.
"""

from __future__ import annotations

# The name that is kept -> others that say the same.
_PRINTED: dict[str, tuple[str, ...]] = {
    "per_device_train_batch_size": ("micro_batch_size", "train_micro_batch_size_per_gpu"),
    "batch_size": (),
    "max_length": ("max_seq_length", "sequence_len", "cutoff_len", "max_seq_len", "seq_length"),
    "model_max_length": (),
    "gradient_accumulation_steps": (),
    "per_device_eval_batch_size": (),
    "eval_accumulation_steps": (),
    "adapter": (),
    "finetuning_type": (),
    "load_in_4bit": (),
    "load_in_8bit": (),
    "lora_r": ("lora_rank",),
    "torch_dtype": ("dtype",),
    "bf16": (),
    "fp16": (),
    "mixed_precision": (),
    "optim": ("optimizer",),
    "gradient_checkpointing": ("activation_checkpointing",),
    "attn_implementation": ("_attn_implementation",),
    "flash_attention": (),
    "use_liger_kernel": (),
    "packing": (),
    "world_size": (),
    "num_processes": (),
    "zero_stage": (),
    "deepspeed": (),
    "fsdp": (),
    "dataloader_num_workers": (),
}
# Evidence for causes, and the sizes in a model's config.json.
ALSO_LOGGED = (
    "auto_find_batch_size",
    "dataloader_pin_memory",
    "device_map",
    "gpu_memory_utilization",
    "hidden_size",
    "intermediate_size",
    "lora_alpha",
    "max_completion_length",
    "max_model_len",
    "max_prompt_length",
    "max_steps",
    "num_attention_heads",
    "num_generations",
    "num_hidden_layers",
    "num_key_value_heads",
    "num_train_epochs",
    "tensor_parallel_size",
    "torch_compile",
    "train_batch_size",
    "vocab_size",
)
# A name as a log prints it -> the name under which its value is kept.
LOG_KEYS: dict[str, str] = {
    **{name: name for name in ALSO_LOGGED},
    **{name: kept for kept, others in _PRINTED.items() for name in (kept, *others)},
}
