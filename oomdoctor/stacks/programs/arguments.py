"""transformers: `TrainingArguments`, and what scripts pass to `from_pretrained`.

Names are those of transformers 5.23, with the older ones that it or its predecessors accept.
"""

from __future__ import annotations

from collections.abc import Callable

from oomdoctor.records.configuration.config import TrainConfig, is_zero
from oomdoctor.records.facts.attention import ATTENTION_NAMES
from oomdoctor.stacks.engines import engine_settings
from oomdoctor.stacks.names.fsdp import FSDP_CONFIG, FSDP_WORD
from oomdoctor.stacks.names.row import LEFT_OUT, NotTakenError, Read, Row, Write, table, words_of
from oomdoctor.stacks.names.techniques import LOW_RANK
from oomdoctor.stacks.names.values import (
    dtype,
    flag,
    flagged,
    given,
    integer,
    is_auto,
    named_file,
    number,
    on_if,
    only_if,
    optimizer,
    steps,
    switch,
    switched,
    text_of,
)
from oomdoctor.stacks.partial_config import PartialConfig
from oomdoctor.stacks.programs.deepspeed import DEEPSPEED, under

_KERNELS = words_of("attention kernels")


def attention(value: object) -> PartialConfig:
    """`attn_implementation`; null and auto leave the choice to transformers, which takes sdpa."""
    if value is None or is_auto(value):
        return {}
    word = str(value).strip().lower()
    found = ATTENTION_NAMES.get(word) or _KERNELS.get(word)
    if found is None:
        raise NotTakenError(f"a rung has no attention {value}; sdpa is taken")
    return {"attention": found}


def computes(config: TrainConfig, precision: str) -> bool:
    """Whether a Trainer's switch for a dtype is on; ZeRO trains 16-bit weights with it."""
    if is_zero(config) and config.autocast_dtype == "none":
        return precision == config.weights_dtype
    return precision == config.autocast_dtype


def _not_reentrant(value: object) -> PartialConfig:
    if value is None or not flag(value):
        return {}
    raise NotTakenError("oomdoctor checkpoints without re-entering autograd")


def _checkpointing(config: TrainConfig) -> bool:
    return config.activation_checkpointing != "none"


bucket = given("bucket_mib", integer)


def _bucket_of(config: TrainConfig) -> object:
    gradient = 4 if config.weights_dtype == "float32" else 2
    return engine_settings(config, gradient).get("ddp_bucket_cap_mb", LEFT_OUT)


def mixed(name: str, precision: str) -> Row:
    """A switch that turns on mixed precision in a dtype."""
    key = f"mixed_{precision}"
    return Row(name, (key,), switched(key, auto=True), lambda config: computes(config, precision))


def _of_checkpointing(
    name: str,
    keys: tuple[str, ...],
    read: Read,
    holds: Callable[[TrainConfig], bool],
    write: Write,
) -> Row:
    """A keyword of checkpointing, written where `holds` is true."""
    row = Row(
        f"gradient_checkpointing_kwargs.{name}",
        keys,
        read,
        write,
        (f"activation_checkpointing_kwargs.{name}",),
    )
    return only_if(row, holds)


FROM_PRETRAINED = table(
    "from_pretrained",
    (
        text_of("model_name_or_path", "model", "model_name", "model_id", "model_name_or_id"),
        text_of("model_revision", "revision"),
        Row(
            "dtype",
            ("weights_dtype",),
            given("weights_dtype", dtype),
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
        number("gradient_accumulation_steps", "accumulation_steps", write=steps),
        Row(
            "optim",
            ("optimizer",),
            given("optimizer", optimizer),
            lambda config: config.optimizer,
        ),
        mixed("bf16", "bfloat16"),
        mixed("fp16", "float16"),
        Row(
            "gradient_checkpointing",
            ("checkpointing",),
            switched("checkpointing"),
            _checkpointing,
            ("activation_checkpointing",),
        ),
        _of_checkpointing("use_reentrant", (), _not_reentrant, _checkpointing, lambda _: False),
        _of_checkpointing(
            "every_n_layers",
            ("checkpoint_every",),
            given("checkpoint_every", integer),
            lambda config: config.activation_checkpointing == "every_n",
            lambda config: config.checkpoint_every,
        ),
        _of_checkpointing(
            "offload",
            ("checkpoint_offload",),
            flagged("checkpoint_offload"),
            lambda config: config.activation_checkpointing == "offload",
            lambda _: True,
        ),
        *LOW_RANK,
        switch("torch_compile", "compile", True, False),
        switch("use_liger_kernel", "loss", "liger", "default", "use_liger"),
        Row("ddp_bucket_cap_mb", ("bucket_mib",), bucket, _bucket_of),
        Row(
            "accelerator_config.gradient_accumulation_kwargs.sync_each_batch",
            ("sync_each_batch",),
            switched("sync_each_batch"),
            on_if(lambda config: config.sync_each_batch),
        ),
        FSDP_WORD,
        *FSDP_CONFIG,
        named_file("deepspeed"),
        *under("deepspeed", DEEPSPEED, is_zero),
    ),
)
