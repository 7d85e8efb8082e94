"""transformers: `TrainingArguments`, and what scripts pass to `from_pretrained`.

Names are those of transformers 5.23, with the older ones that it or its predecessors accept.
"""

from __future__ import annotations

from oomdoctor.records.config import TrainConfig, is_zero
from oomdoctor.records.facts.attention import ATTENTION_NAMES
from oomdoctor.stacks.names.fsdp import FSDP_CONFIG, FSDP_WORD
from oomdoctor.stacks.names.row import LEFT_OUT, NotTakenError, Read, Row, table
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


FROM_PRETRAINED = table(
    "from_pretrained",
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
)

ARGUMENTS = table(
    "training_arguments",
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
)
