"""Names of settings and what they mean for a diagnosis, in a configuration file and in a log."""

from __future__ import annotations

from typing import Any

import pytest

from oomdoctor.explain.reading.logged_settings import (
    ALSO_LOGGED,
    LOG_KEYS,
    OF_ENGINES,
    SettingsReader,
)
from oomdoctor.explain.training.known import Given, setup_of

ALL = "all-linear"
# (field, name) -> what a file says, and what it means. A new name of logs needs an example.
EXAMPLES: dict[tuple[str, str], tuple[Any, Any]] = {
    ("model", "model_name_or_path"): ("acme/model-8b", "acme/model-8b"),
    ("model", "base_model"): ("acme/model-8b", "acme/model-8b"),
    ("model", "pretrained_model_name_or_path"): ("acme/model-8b", "acme/model-8b"),
    ("model", "model"): ("acme/model-8b", "acme/model-8b"),
    ("micro_batch_size", "per_device_train_batch_size"): (4, 4),
    ("micro_batch_size", "micro_batch_size"): (4, 4),
    ("micro_batch_size", "train_micro_batch_size_per_gpu"): (4, 4),
    ("micro_batch_size", "micro_batch_size_per_gpu"): (4, 4),
    ("micro_batch_size", "per_gpu_train_batch_size"): (4, 4),
    ("micro_batch_size", "batch_size"): ("4", 4),
    ("sequence_length", "max_length"): (2048, 2048),
    ("sequence_length", "max_seq_length"): (2048, 2048),
    ("sequence_length", "sequence_len"): (2048, 2048),
    ("sequence_length", "cutoff_len"): (2048, 2048),
    ("sequence_length", "max_seq_len"): (2048, 2048),
    ("sequence_length", "seq_length"): (2048, 2048),
    ("sequence_length", "sequence_length"): (2048, 2048),
    ("sequence_length", "seq_len"): (2048, 2048),
    ("sequence_length", "block_size"): (2048, 2048),
    ("sequence_length", "model_max_length"): (2048, 2048),
    ("accumulation_steps", "gradient_accumulation_steps"): (8, 8),
    ("eval_batch_size", "per_device_eval_batch_size"): (2, 2),
    ("eval_batch_size", "eval_batch_size"): (2, 2),
    ("eval_accumulation_steps", "eval_accumulation_steps"): (16, 16),
    ("method", "adapter"): ("qlora", "qlora"),
    ("method", "finetuning_type"): ("freeze", "full"),
    ("method", "load_in_4bit"): (True, "qlora"),
    ("method", "load_in_8bit"): (True, "qlora"),
    ("method", "quantization_bit"): (4, "qlora"),
    ("method", "use_peft"): (True, "lora"),
    ("method", "use_lora"): (True, "lora"),
    ("method", "method"): ("full", "full"),
    ("method", "lora_r"): (16, "lora"),
    ("method", "lora_rank"): (16, "lora"),
    ("quantization", "load_in_4bit"): (True, "nf4"),
    ("quantization", "load_in_8bit"): (True, "int8"),
    ("quantization", "quantization_bit"): (8, "int8"),
    ("lora_rank", "lora_r"): (32, 32),
    ("lora_rank", "lora_rank"): (32, 32),
    ("lora_targets", "lora_target_linear"): (True, ALL),
    ("lora_targets", "lora_target_modules"): (["q_proj", "v_proj"], ("q_proj", "v_proj")),
    ("lora_targets", "lora_target"): ("all", ALL),
    ("lora_targets", "target_modules"): ("all-linear", ALL),
    ("weights_dtype", "torch_dtype"): ("torch.bfloat16", "bfloat16"),
    ("weights_dtype", "dtype"): ("float32", "float32"),
    ("weights_dtype", "model_dtype"): ("fp16", "float16"),
    ("weights_dtype", "pure_bf16"): (True, "bfloat16"),
    ("weights_dtype", "bfloat16"): (True, "bfloat16"),
    ("weights_dtype", "weights_dtype"): ("float16", "float16"),
    ("autocast_dtype", "bf16"): (True, "bfloat16"),
    ("autocast_dtype", "bf16.enabled"): (True, "bfloat16"),
    ("autocast_dtype", "fp16"): (True, "float16"),
    ("autocast_dtype", "fp16.enabled"): (True, "float16"),
    ("autocast_dtype", "mixed_precision"): ("no", "none"),
    ("optimizer", "optim"): ("adafactor", "adafactor"),
    ("optimizer", "optimizer"): ("paged_adamw_8bit", "paged_adamw_8bit"),
    ("optimizer", "optimizer.type"): ("AdamW", "adamw_torch"),
    ("activation_checkpointing", "gradient_checkpointing"): (True, "full"),
    ("activation_checkpointing", "activation_checkpointing"): (False, "none"),
    ("activation_checkpointing", "enable_activation_checkpointing"): (True, "full"),
    ("activation_checkpointing", "enable_gradient_checkpointing"): (True, "full"),
    ("activation_checkpointing", "fsdp_activation_checkpointing"): (True, "full"),
    ("activation_checkpointing", "disable_gradient_checkpointing"): (True, "none"),
    ("attention", "attn_implementation"): ("sdpa", "sdpa"),
    ("attention", "_attn_implementation"): ("eager", "eager"),
    ("attention", "flash_attn"): ("fa2", "flash_attention_2"),
    ("attention", "flash_attention"): (True, "flash_attention_2"),
    ("attention", "use_flash_attention_2"): (True, "flash_attention_2"),
    ("attention", "sdp_attention"): (True, "sdpa"),
    ("attention", "eager_attention"): (True, "eager"),
    ("loss", "use_liger_kernel"): (True, "liger"),
    ("loss", "use_liger"): (True, "liger"),
    ("loss", "use_liger_loss"): (True, "liger"),
    ("loss", "enable_liger_kernel"): (True, "liger"),
    ("loss", "liger_fused_linear_cross_entropy"): (True, "liger"),
    ("packing", "packing"): (True, "packed"),
    ("packing", "sample_packing"): (True, "packed"),
    ("world_size", "world_size"): (8, 8),
    ("world_size", "num_processes"): (8, 8),
    ("world_size", "nproc_per_node"): (8, 8),
    ("sharding", "zero_stage"): (0, "none"),
    ("sharding", "zero_optimization.stage"): (3, "zero3"),
    ("sharding", "deepspeed"): ("configs/ds_z2_config.json", "zero2"),
    ("sharding", "fsdp"): ("full_shard auto_wrap", "fsdp"),
    ("sharding", "distributed_type"): ("FSDP", "fsdp"),
    ("sharding", "fsdp_sharding_strategy"): ("FULL_SHARD", "fsdp"),
    ("offload", "offload_optimizer.device"): ("cpu", "optimizer"),
    ("offload", "offload_optimizer_device"): ("none", "none"),
    ("offload", "offload_param.device"): ("nvme", "parameters"),
    ("offload", "offload_param_device"): ("cpu", "parameters"),
    ("offload", "fsdp_offload_params"): (True, "parameters"),
    ("offload", "cpu_offload"): (True, "parameters"),
    ("workers", "dataloader_num_workers"): (0, 0),
    ("workers", "num_workers"): (4, 4),
    ("allocator", "PYTORCH_CUDA_ALLOC_CONF"): ("expandable_segments:True", "expandable_segments"),
    ("allocator", "PYTORCH_ALLOC_CONF"): ("expandable_segments:True", "expandable_segments"),
    ("allocator", "allocator"): ("expandable_segments:True", "expandable_segments"),
    ("allocator", "expandable_segments"): (True, "expandable_segments"),
}
IN_LOGS = [(field, name) for field, name in EXAMPLES if name in LOG_KEYS]


@pytest.mark.parametrize(("field", "name"), EXAMPLES)
def test_a_file_says_it(field: str, name: str) -> None:
    told, meaning = EXAMPLES[field, name]
    for settings in ({name: told}, {"outer": {name: told}}):
        assert setup_of(Given(settings=settings), {}).values.get(field) == meaning


@pytest.mark.parametrize(("field", "name"), IN_LOGS)
@pytest.mark.parametrize("shape", ["{}={}", "'{}': '{}'", "  --{} {}"])
def test_a_log_says_it(field: str, name: str, shape: str) -> None:
    told, meaning = EXAMPLES[field, name]
    reader = SettingsReader()
    reader.feed(shape.format(name, told))
    setup = setup_of(Given(), reader.settings)
    assert setup.values.get(field) == meaning
    assert setup.origins[field] == "the log"


def test_every_name_of_logs_has_an_example() -> None:
    of_engines = {name for kept, others in OF_ENGINES.items() for name in (kept, *others)}
    assert set(LOG_KEYS) - set(ALSO_LOGGED) - of_engines == {name for _, name in IN_LOGS}


def test_a_value_is_kept_under_a_name_that_means_the_same() -> None:
    for name, kept in LOG_KEYS.items():
        assert LOG_KEYS[kept] == kept
        same = {field for field, one in EXAMPLES if one == name}
        assert same == {field for field, one in EXAMPLES if one == kept}
    assert not {LOG_KEYS[name] for _, name in IN_LOGS} & set(ALSO_LOGGED)


@pytest.mark.parametrize(
    ("line", "share"),
    [
        ("vllm serve Qwen/Qwen3-8B --gpu-memory-utilization 0.98", 0.98),
        ("llm = LLM(model=path, gpu_memory_utilization=.85)", 0.85),
        ('command: ["--gpu-memory-utilization", "0.7"]', 0.7),
        ("      gpu-memory-utilization: 0.6", 0.6),
        ("my util is 0.98 already", 0.98),
        ("less than desired GPU memory utilization (0.9, 42.67 GiB)", 0.9),
        ("python -m sglang.launch_server --mem-fraction-static 0.8", 0.8),
        ("actor_rollout_ref.rollout.gpu_memory_utilization=0.45 \\", 0.45),
        ("GRPOConfig(use_vllm=True, vllm_gpu_memory_utilization=0.3)", 0.3),
        ("lmdeploy serve api_server m --cache-max-entry-count 0.5", 0.5),
        ("  value: { string_value: kv_cache_free_gpu_mem_fraction 0.95 }", 0.95),
        ("Try increasing `gpu_memory_utilization` when initializing the engine.", None),
        ("Try increasing gpu_memory_utilization. 0.11.2 is the version", None),
    ],
)
def test_the_share_of_an_engine_in_any_spelling(line: str, share: float | None) -> None:
    reader = SettingsReader()
    reader.feed(line)
    assert reader.settings.get("gpu_memory_utilization") == share


def test_limits_of_engines_under_one_name() -> None:
    reader = SettingsReader()
    for line in ("--tp 4 --max-running-requests 32", "llama-server -m x.gguf -ngl 99 -c 32768"):
        reader.feed(line)
    told = {key: reader.settings.get(key) for key in OF_ENGINES}
    assert {key: value for key, value in told.items() if value is not None} == {
        "tensor_parallel_size": 4,
        "max_num_seqs": 32,
        "n_gpu_layers": 99,
        "n_ctx": 32768,
    }
