"""The settings of a training and what each program calls them: one row a setting.

Configuration files and logs are both read with this table. To add a setting, add a row here and its
example to the test. A field may have several rows; the first one that yields a value is used.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping

from oomdoctor.explain.reading.settings.values import (
    Reader,
    all_roles_if_on,
    contains,
    count,
    flag,
    fsdp,
    if_on,
    integer,
    lora_if_rank,
    method,
    negated,
    offloads_to,
    one_of,
    optimizer,
    qlora_of_bits,
    quantization_of_bits,
    roles,
    stage_in_name,
    text,
)
from oomdoctor.records.facts.attention import ATTENTION_NAMES
from oomdoctor.records.facts.dtypes import TRAINED_NAMES

Names = Mapping[str, str | tuple[str, ...]]


@dataclasses.dataclass(frozen=True, slots=True)
class Setting:
    """A field of `training.known.Setup`, the reader of its value, and its names by program.

    A name matches a key or the end of its dotted path, so nested files need no rows.
    `names` are read from files and logs. `in_files` are read from files only: they are too common
    as words, or no log prints them.
    """

    field: str
    read: Reader
    names: Names = dataclasses.field(default_factory=dict)
    in_files: Names = dataclasses.field(default_factory=dict)

    def logged_names(self) -> tuple[str, ...]:
        """The names that are read from logs."""
        return tuple(_flat(self.names))

    def all_names(self) -> tuple[str, ...]:
        """All names, the most reliable first."""
        return (*_flat(self.names), *_flat(self.in_files))


def _flat(names: Names) -> Iterator[str]:
    for value in names.values():
        yield from (value,) if isinstance(value, str) else value


SETTINGS: tuple[Setting, ...] = (
    Setting("model", text, in_files={
        "transformers": "model_name_or_path", "axolotl": "base_model",
        "peft": "pretrained_model_name_or_path", "others": "model"}),
    Setting("micro_batch_size", integer,
        {"transformers": "per_device_train_batch_size", "axolotl": "micro_batch_size",
         "deepspeed": "train_micro_batch_size_per_gpu"},
        {"transformers 3": "per_gpu_train_batch_size"}),
    Setting("micro_batch_size", integer, {"others": "batch_size"}),
    Setting("sequence_length", integer,
        {"trl": ("max_length", "max_seq_length"), "axolotl": "sequence_len",
         "llama-factory": "cutoff_len", "others": ("max_seq_len", "seq_length")},
        {"oomdoctor": "sequence_length", "others": ("seq_len", "block_size")}),
    Setting("sequence_length", integer, {"transformers": "model_max_length"}),
    Setting("accumulation_steps", integer, {"transformers": "gradient_accumulation_steps"}),
    Setting("eval_batch_size", integer, {"transformers": "per_device_eval_batch_size"},
        {"axolotl": "eval_batch_size"}),
    Setting("eval_accumulation_steps", integer, {"transformers": "eval_accumulation_steps"}),
    # the method and its adapters
    Setting("method", method, {"axolotl": "adapter"}),
    Setting("method", method, {"llama-factory": "finetuning_type"}),
    Setting("method", if_on("qlora"), {"transformers": "load_in_4bit"}),
    Setting("method", if_on("qlora"), {"transformers": "load_in_8bit"}),
    Setting("method", qlora_of_bits, in_files={"llama-factory": "quantization_bit"}),
    Setting("method", if_on("lora"), in_files={"trl": "use_peft", "others": "use_lora"}),
    Setting("method", method, in_files={"oomdoctor": "method"}),
    Setting("method", lora_if_rank, {"trl": "lora_r", "llama-factory": "lora_rank"}),
    Setting("quantization", if_on("nf4"), {"transformers": "load_in_4bit"}),
    Setting("quantization", if_on("int8"), {"transformers": "load_in_8bit"}),
    Setting("quantization", quantization_of_bits, in_files={"llama-factory": "quantization_bit"}),
    Setting("lora_rank", integer, {"trl": "lora_r", "llama-factory": "lora_rank"}),
    Setting("lora_targets", all_roles_if_on, in_files={"axolotl": "lora_target_linear"}),
    Setting("lora_targets", roles, in_files={
        "trl": "lora_target_modules", "llama-factory": "lora_target", "peft": "target_modules"}),
    # data types
    Setting("weights_dtype", one_of(TRAINED_NAMES), {"transformers": ("torch_dtype", "dtype")},
        {"others": "model_dtype"}),
    Setting("weights_dtype", if_on("bfloat16"), in_files={
        "llama-factory": "pure_bf16", "axolotl": "bfloat16"}),
    Setting("weights_dtype", one_of(TRAINED_NAMES), in_files={"oomdoctor": "weights_dtype"}),
    Setting("autocast_dtype", if_on("bfloat16"), {"transformers": "bf16"},
        {"deepspeed": "bf16.enabled"}),
    Setting("autocast_dtype", if_on("float16"), {"transformers": "fp16"},
        {"deepspeed": "fp16.enabled"}),
    Setting("autocast_dtype", one_of({**TRAINED_NAMES, "no": "none"}),
        {"accelerate": "mixed_precision"}),
    # optimizer, checkpointing, kernels
    Setting("optimizer", optimizer, {"transformers": "optim", "axolotl": "optimizer"},
        {"deepspeed": "optimizer.type"}),
    Setting("checkpointing", flag,
        {"transformers": "gradient_checkpointing", "others": "activation_checkpointing"},
        {"others": "enable_gradient_checkpointing",
         "accelerate": "fsdp_activation_checkpointing"}),
    Setting("checkpointing", negated, in_files={
        "llama-factory": "disable_gradient_checkpointing"}),
    Setting("attention", one_of(ATTENTION_NAMES),
        {"transformers": ("attn_implementation", "_attn_implementation")},
        {"llama-factory": "flash_attn"}),
    Setting("attention", if_on("flash_attention_2"), {"axolotl": "flash_attention"},
        {"transformers 4": "use_flash_attention_2"}),
    Setting("attention", if_on("sdpa"), in_files={"axolotl": "sdp_attention"}),
    Setting("attention", if_on("eager"), in_files={"axolotl": "eager_attention"}),
    Setting("liger", flag, {"transformers": "use_liger_kernel"},
        {"trl": ("use_liger", "use_liger_loss"), "llama-factory": "enable_liger_kernel",
         "axolotl": "liger_fused_linear_cross_entropy"}),
    Setting("packing", flag, {"trl": "packing"}, {"axolotl": "sample_packing"}),
    # several GPUs
    Setting("world_size", integer, {"pytorch": "world_size"}),
    Setting("world_size", integer, {"accelerate": "num_processes"}, {"pytorch": "nproc_per_node"}),
    Setting("zero_stage", count, {"accelerate": "zero_stage"},
        {"deepspeed": "zero_optimization.stage"}),
    Setting("zero_stage", stage_in_name, {"transformers": "deepspeed"}),
    Setting("fsdp", fsdp, {"transformers": "fsdp"}),
    Setting("fsdp", contains("fsdp"), in_files={"accelerate": "distributed_type"}),
    Setting("fsdp", fsdp, in_files={"accelerate": "fsdp_sharding_strategy"}),
    Setting("offload_optimizer", offloads_to, in_files={
        "deepspeed": "offload_optimizer.device", "accelerate": "offload_optimizer_device"}),
    Setting("offload_parameters", offloads_to, in_files={
        "deepspeed": "offload_param.device", "accelerate": "offload_param_device"}),
    Setting("offload_parameters", flag, in_files={
        "accelerate": "fsdp_offload_params", "others": "cpu_offload"}),
    # the rest
    Setting("workers", count, {"transformers": "dataloader_num_workers"},
        {"others": "num_workers"}),
    Setting("expandable_segments", contains("expandable_segments:true"), in_files={
        "environment": ("PYTORCH_CUDA_ALLOC_CONF", "PYTORCH_ALLOC_CONF"),
        "oomdoctor": "allocator"}),
    Setting("expandable_segments", flag, in_files={"others": "expandable_segments"}),
)  # fmt: skip

# Read from logs too: evidence for causes, and the sizes in a model's config.json.
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
# A name as a log prints it -> the first name of its row, under which the value is kept.
LOG_KEYS: dict[str, str] = {
    **{name: name for name in ALSO_LOGGED},
    **{name: row.logged_names()[0] for row in SETTINGS for name in row.logged_names()},
}
