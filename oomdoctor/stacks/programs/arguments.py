"""transformers: `TrainingArguments`, and what scripts pass to `from_pretrained`.

Names are those of transformers 5.23, with the older ones that it or its predecessors accept.
"""

from __future__ import annotations

from oomdoctor.records.config import TrainConfig, is_zero
from oomdoctor.records.facts.attention import ATTENTION_NAMES
from oomdoctor.stacks.names.fsdp import FSDP_CONFIG, FSDP_WORD
from oomdoctor.stacks.names.row import LEFT_OUT, NotTakenError, Read, Row, Table, listed
from oomdoctor.stacks.names.techniques import LOW_RANK
from oomdoctor.stacks.names.values import (
    dtype,
    flag,
    integer,
    is_auto,
    named_file,
    number,
    only_if,
    optimizer,
    switch,
    text_of,
)
from oomdoctor.stacks.partial_config import PartialConfig, only
from oomdoctor.stacks.programs.deepspeed import DEEPSPEED, under

_KERNELS = {
    "kernels-community/flash-attn": "flash_attention_2",
    "kernels-community/flash-attn2": "flash_attention_2",
    "kernels-community/flash-attn3": "flash_attention_3",
    "kernels-community/vllm-flash-attn3": "flash_attention_3",
}


def attention(value: object) -> PartialConfig:
    """`attn_implementation`; null and auto leave the choice to transformers, which takes sdpa."""
    if value is None or is_auto(value):
        return {}
    word = str(value).strip().lower()
    found = ATTENTION_NAMES.get(word) or _KERNELS.get(word)
    if found is None:
        raise NotTakenError(f"a rung has no attention {value}; sdpa is taken")
    return {"attention": found}


def mixed(precision: str) -> Read:
    """Reads a switch that turns on mixed precision in a dtype."""

    def read(value: object) -> PartialConfig:
        if value is None or is_auto(value):
            return {}
        return only(f"mixed_{precision}", flag(value))

    return read


def computes(config: TrainConfig, precision: str) -> bool:
    """Whether a Trainer's switch for a dtype is on; ZeRO trains 16-bit weights with it."""
    if is_zero(config) and config.autocast_dtype == "none":
        return precision == config.weights_dtype
    return precision == config.autocast_dtype


def _weights(value: object) -> PartialConfig:
    return {} if value is None else {"weights_dtype": dtype(value)}


def _accumulation(config: TrainConfig) -> object:
    return config.accumulation_steps()


def _every(value: object) -> PartialConfig:
    return {} if value is None else {"checkpoint_every": integer(value)}


def _not_reentrant(value: object) -> PartialConfig:
    if value is None or not flag(value):
        return {}
    raise NotTakenError("oomdoctor checkpoints without re-entering autograd")


def _bucket(value: object) -> PartialConfig:
    return {} if value is None else {"bucket_mib": integer(value)}


def _bucket_of(config: TrainConfig) -> object:
    if config.sharding != "ddp" or not config.bucket_elements:
        return LEFT_OUT
    gradient = 4 if config.weights_dtype == "float32" else 2
    return max(1, config.bucket_elements * gradient >> 20)


def _checkpointing(config: TrainConfig) -> bool:
    return config.activation_checkpointing != "none"


FROM_PRETRAINED = Table(
    (
        text_of("model_name_or_path", "model", "model_name", "model_id", "model_name_or_id"),
        text_of("model_revision", "revision"),
        Row(
            "dtype",
            ("weights_dtype",),
            _weights,
            lambda config: config.weights_dtype,
            ("torch_dtype", "model_init_kwargs.dtype", "model_init_kwargs.torch_dtype"),
        ),
        Row(
            "attn_implementation",
            ("attention",),
            attention,
            lambda config: config.attention,
            ("model_init_kwargs.attn_implementation",),
        ),
    ),
    neutral=listed(
        """
        model_init_kwargs.use_cache model_init_kwargs.revision use_cache
        model_init_kwargs.trust_remote_code
        """
    ),
    reasons={
        "trust_remote_code": "pass --trust-remote-code to allow it",
        "config_name": "the configuration of MODEL is used",
    },
)

ARGUMENTS = Table(
    (
        number("per_device_train_batch_size", "micro_batch_size", "per_gpu_train_batch_size"),
        Row(
            "gradient_accumulation_steps",
            ("accumulation_steps",),
            number("gradient_accumulation_steps", "accumulation_steps").read,
            _accumulation,
        ),
        Row(
            "optim",
            ("optimizer",),
            lambda value: {} if value is None else {"optimizer": optimizer(value)},
            lambda config: config.optimizer,
        ),
        Row(
            "bf16",
            ("mixed_bfloat16",),
            mixed("bfloat16"),
            lambda config: computes(config, "bfloat16"),
        ),
        Row(
            "fp16",
            ("mixed_float16",),
            mixed("float16"),
            lambda config: computes(config, "float16"),
        ),
        Row(
            "gradient_checkpointing",
            ("checkpointing",),
            switch("gradient_checkpointing", "checkpointing", True, False).read,
            _checkpointing,
            ("activation_checkpointing",),
        ),
        Row(
            "gradient_checkpointing_kwargs.use_reentrant",
            (),
            _not_reentrant,
            lambda config: False if _checkpointing(config) else LEFT_OUT,
            ("activation_checkpointing_kwargs.use_reentrant",),
        ),
        Row(
            "gradient_checkpointing_kwargs.every_n_layers",
            ("checkpoint_every",),
            _every,
            lambda config: (
                config.checkpoint_every
                if config.activation_checkpointing == "every_n"
                else LEFT_OUT
            ),
            ("activation_checkpointing_kwargs.every_n_layers",),
        ),
        Row(
            "gradient_checkpointing_kwargs.offload",
            ("checkpoint_offload",),
            lambda value: {"checkpoint_offload": flag(value)},
            lambda config: True if config.activation_checkpointing == "offload" else LEFT_OUT,
            ("activation_checkpointing_kwargs.offload",),
        ),
        *LOW_RANK,
        switch("torch_compile", "compile", True, False),
        switch("use_liger_kernel", "loss", "liger", "default", "use_liger"),
        Row("ddp_bucket_cap_mb", ("bucket_mib",), _bucket, _bucket_of),
        only_if(
            switch(
                "accelerator_config.gradient_accumulation_kwargs.sync_each_batch",
                "sync_each_batch",
                True,
                False,
            ),
            lambda config: config.sync_each_batch,
        ),
        FSDP_WORD,
        *FSDP_CONFIG,
        named_file("deepspeed"),
        *under("deepspeed", DEEPSPEED, lambda config: is_zero(config)),
    ),
    neutral=listed(
        """
        output_dir overwrite_output_dir num_train_epochs max_steps learning_rate
        lr_scheduler_type lr_scheduler_kwargs warmup_steps warmup_ratio weight_decay
        adam_beta1 adam_beta2 adam_epsilon average_tokens_across_devices max_grad_norm
        bf16_full_eval fp16_full_eval logging_strategy logging_steps logging_first_step
        log_on_each_node logging_nan_inf_filter logging_dir include_num_input_tokens_seen
        include_tokens_per_second log_level log_level_replica disable_tqdm report_to
        run_name project trackio_space_id trackio_bucket_id trackio_static_space_id
        eval_strategy evaluation_strategy eval_steps eval_delay eval_on_start
        eval_do_concat_batches eval_use_gather_object include_for_metrics
        include_inputs_for_metrics batch_eval_metrics prediction_loss_only save_only_model
        save_strategy save_steps save_on_each_node save_total_limit save_safetensors
        enable_jit_checkpoint push_to_hub push_to_hub_model_id push_to_hub_organization
        push_to_hub_token hub_token hub_private_repo hub_model_id hub_strategy
        hub_always_push hub_revision load_best_model_at_end metric_for_best_model
        greater_is_better ignore_data_skip restore_callback_states_from_checkpoint
        full_determinism seed data_seed jit_mode_eval dataloader_drop_last
        dataloader_num_workers dataloader_pin_memory dataloader_persistent_workers
        dataloader_prefetch_factor dataloader_multiprocessing_context dataloader_in_order
        remove_unused_columns label_names length_column_name ddp_backend ddp_timeout debug
        skip_memory_metrics do_train do_eval do_predict resume_from_checkpoint local_rank
        past_index use_cache accelerator_config.split_batches
        accelerator_config.dispatch_batches accelerator_config.even_batches
        accelerator_config.use_seedable_sampler accelerator_config.non_blocking
        fp16_opt_level half_precision_backend tf32
        """
    ),
    reasons={
        "per_device_eval_batch_size": "only training steps are simulated; probe has --eval",
        "per_gpu_eval_batch_size": "only training steps are simulated; probe has --eval",
        "eval_accumulation_steps": "only training steps are simulated",
        "auto_find_batch_size": "oomdoctor finds the micro-batch size itself",
        "torch_empty_cache_steps": "the cache is not emptied between steps",
        "torch_compile_backend": "inductor is used",
        "torch_compile_mode": "the default mode is used",
        "label_smoothing_factor": "the loss has no label smoothing, which needs more memory",
        "neftune_noise_alpha": "no noise is added to embeddings",
        "group_by_length": "every row has the full sequence length",
        "train_sampling_strategy": "every row has the full sequence length",
        "liger_kernel_config": "all kernels of Liger are used",
        "use_cpu": "the device is that of the command line",
        "no_cuda": "the device is that of the command line",
        "use_mps_device": "the device is that of the command line",
        "ddp_find_unused_parameters": "DDP does not search for unused parameters",
        "ddp_broadcast_buffers": "DDP has its usual settings",
        "ddp_static_graph": "DDP has its usual settings",
        "parallelism_config": "a rung has no such parallelism",
        "torchdynamo": "use torch_compile",
        "accelerator_config": "a rung has no such setting",
        "gradient_checkpointing_kwargs": "a rung has no such setting",
        "activation_checkpointing_kwargs": "a rung has no such setting",
        "model_init_kwargs": "a rung has no such setting",
    },
    defaults={
        "micro_batch_size": 8,
        "accumulation_steps": 1,
        "optimizer": "adamw_torch_fused",
        "mixed_bfloat16": False,
        "mixed_float16": False,
        "checkpointing": False,
    },
    source="the default of transformers 5.23",
)
