"""axolotl's configuration. Names are those of axolotl 0.19."""

from __future__ import annotations

from collections.abc import Collection

from oomdoctor.records.configuration.config import TrainConfig, is_fsdp, is_zero, scored_tokens
from oomdoctor.stacks.names.fsdp import rows
from oomdoctor.stacks.names.peft import (
    BITS,
    adapted,
    in_four_bits,
    lora_rows,
    upcast_adapters,
    variants,
)
from oomdoctor.stacks.names.row import (
    LEFT_OUT,
    NotTakenError,
    Row,
    Settings,
    Write,
    exports_data,
    table,
    words_of,
)
from oomdoctor.stacks.names.techniques import LOW_RANK_MAPPING, fp8_row, frozen_vision, side
from oomdoctor.stacks.names.values import (
    among,
    flag,
    flagged,
    if_on,
    integer,
    named_file,
    names_in,
    nothing,
    number,
    on_if,
    only_if,
    optimizer_among,
    steps,
    switch,
    switched,
    target_words,
    targets,
    text_of,
    whole,
)
from oomdoctor.stacks.partial_config import PartialConfig, RungKeys
from oomdoctor.stacks.programs.arguments import attention, bucket
from oomdoctor.stacks.programs.deepspeed import DEEPSPEED, under
from oomdoctor.stacks.programs.program import OF_WEIGHTS, Program, facts
from oomdoctor.stacks.programs.trl import PRECOMPUTED, beta, beta_of, is_flat, is_packed
from oomdoctor.stacks.rung import StackRung, learning_rate

_OPTIMIZERS = words_of("axolotl optimizer")
_FSDP_ROWS = (
    "fsdp_config.reshard_after_forward",
    "fsdp_config.activation_checkpointing",
    "fsdp_config.sharding_strategy",
)
WHOLE_ROW = 1 << 30  # a multiple that no row reaches
_LIGER = "axolotl.integrations.liger.LigerPlugin"


def _bf16(value: object) -> PartialConfig:
    """`bf16`: true and auto use autocast on 16-bit weights; full, of older releases, does not."""
    word = str(value).strip().lower()
    if word == "full":
        return {"mixed_bfloat16": False, "weights_dtype": "bfloat16"}
    if word == "auto":
        return {"mixed_bfloat16": True}
    return {} if value is None else {"mixed_bfloat16": flag(value)}


def _adapter_word(config: TrainConfig) -> object:
    if config.method == "full":
        return LEFT_OUT
    return "qlora" if config.quantization == "nf4" else "lora"


def _optimizer_word(config: TrainConfig) -> str:
    spoken = {name: word for word, name in _OPTIMIZERS.items()}
    return spoken.get(config.optimizer, config.optimizer)


def _checkpointing(value: object) -> PartialConfig:
    word = str(value).strip().lower()
    if word in ("offload", "unsloth"):
        return {"checkpointing": True, "checkpoint_offload": True}
    if word == "offload_disk":
        raise NotTakenError("a rung moves checkpoints to host memory, not to a disk")
    return {} if value is None else {"checkpointing": flag(value)}


def _offloading(value: object) -> PartialConfig:
    word = str(value).strip().lower()
    if word in ("legacy", "disk", "hidden_states"):
        raise NotTakenError(f"a rung has no activation offloading {value}")
    return {} if value is None else {"activation_offloading": flag(value)}


def _offloads(config: TrainConfig) -> bool:
    """Whether activations, or the inputs of checkpoints, are moved to the host."""
    return config.offload == "activations" or config.activation_checkpointing == "offload"


def _fsdp_list(value: object) -> PartialConfig:
    """The list that FSDP 1 was asked for with."""
    found: PartialConfig = {"fsdp": True} if value else {}
    return found | {"fsdp_offload": True} if "offload" in names_in(value) else found


def _autocasts(config: TrainConfig) -> bool:
    """Whether 16-bit training is on: axolotl then always uses autocast, ZeRO aside."""
    return "bfloat16" in (config.autocast_dtype, config.weights_dtype)


def _half(config: TrainConfig) -> bool:
    return not _autocasts(config) and "float16" in (config.autocast_dtype, config.weights_dtype)


def _of_grpo(write: Write) -> Write:
    return lambda config: write(config) if config.objective == "grpo" else LEFT_OUT


AXOLOTL = table(
    "axolotl",
    (
        text_of("base_model", "model"),
        text_of("model_revision", "revision"),
        number("sequence_len", "sequence_length"),
        number("micro_batch_size", "micro_batch_size"),
        number("gradient_accumulation_steps", "accumulation_steps", write=steps),
        Row("optimizer", ("optimizer",), optimizer_among(_OPTIMIZERS), _optimizer_word),
        Row("bf16", ("mixed_bfloat16",), _bf16, _autocasts),
        Row("fp16", ("mixed_float16",), switched("mixed_float16"), _half),
        Row("bfloat16", ("weights_dtype",), if_on({"weights_dtype": "bfloat16"})),
        Row("float16", ("weights_dtype",), if_on({"weights_dtype": "float16"})),
        Row("float32", ("weights_dtype",), if_on({"weights_dtype": "float32"}),
            on_if(lambda config: not (_autocasts(config) or _half(config)))),
        Row("gradient_checkpointing", ("checkpointing",), _checkpointing,
            lambda config: config.activation_checkpointing != "none"),
        Row("gradient_checkpointing_kwargs.use_reentrant", (), nothing,
            lambda c: False if c.activation_checkpointing in ("full", "every_n") else LEFT_OUT),
        Row("activation_offloading", ("activation_offloading",), _offloading, on_if(_offloads)),
        Row("attn_implementation", ("attention",), attention, lambda config: config.attention),
        *(Row(name, ("attention",), if_on({"attention": kernel}))
          for name, kernel in words_of("axolotl attention").items()),
        Row("adapter", ("method",),
            among("axolotl adapter", "a rung has no adapter {}", null={"method": "full"}),
            _adapter_word),
        *variants("peft_use_dora", "peft_use_rslora", "lora_modules_to_save"),
        upcast_adapters("peft_autocast_adapter_dtype"),
        *BITS,
        *lora_rows("lora_r", "lora_alpha", "lora_dropout"),
        only_if(Row("lora_target_linear", ("lora_targets",), if_on({"lora_targets": "all-linear"}),
                    on_if(lambda c: c.lora_targets == "all-linear")), adapted),
        only_if(Row("lora_target_modules", ("lora_targets",), targets,
                    lambda c: LEFT_OUT if c.lora_targets == "all-linear" else target_words(c)),
                adapted),
        only_if(Row("bnb_config_kwargs.bnb_4bit_use_double_quant", ("double_quant",),
                    flagged("double_quant"),
                    lambda c: LEFT_OUT if c.double_quant else False), in_four_bits),
        only_if(Row("bnb_config_kwargs.bnb_4bit_quant_storage", ("quant_storage",),
                    lambda value: {"quant_storage": str(value)},
                    lambda c: LEFT_OUT if c.quant_storage == "bfloat16" else c.quant_storage),
                in_four_bits),
        *LOW_RANK_MAPPING,
        fp8_row("fp8"),
        switch("torch_compile", "compile", True, False),
        Row("plugins", ("plugins",), nothing,
            lambda config: [_LIGER] if config.loss == "liger" else LEFT_OUT),
        only_if(switch("liger_fused_linear_cross_entropy", "loss", "liger", "default"),
                lambda config: config.loss == "liger"),
        Row("sample_packing", ("trl_packing",), switched("trl_packing"), is_packed),
        Row("batch_flattening", ("trl_padding_free",),
            lambda value: {} if value in (None, "auto") else {"trl_padding_free": flag(value)},
            on_if(is_flat)),
        # Rows are then as long as sequence_len, which is cut to no multiple.
        Row("pad_to_sequence_len", ("pads_to",), if_on({"pads_to": WHOLE_ROW}),
            on_if(lambda config: config.padding == "max_length")),
        Row("ddp_bucket_cap_mb", ("bucket_mib",), bucket),
        Row("fsdp", ("fsdp",), _fsdp_list),
        Row("fsdp_version", ("fsdp_version", "fsdp"),
            lambda value: {"fsdp_version": integer(value), "fsdp": True},
            lambda config: config.fsdp_version if is_fsdp(config) else LEFT_OUT),
        *(row for row in rows("fsdp_config", "") if row.name in _FSDP_ROWS),
        Row("fsdp_config.offload_params", ("fsdp_offload",), switched("fsdp_offload"),
            lambda c: c.offload == "parameters" if is_fsdp(c) else LEFT_OUT,
            ("fsdp_config.fsdp_offload_params",)),
        Row("rl", ("objective",), among("axolotl objective", "a rung has no objective {}", null={}),
            lambda c: c.objective if c.objective in ("dpo", "grpo") else LEFT_OUT),
        Row("reward_model", ("objective",),
            lambda value: {"objective": "reward"} if value and flag(value) else {},
            on_if(lambda config: config.objective == "reward")),
        PRECOMPUTED,
        number("trl.num_generations", "num_generations",
               write=_of_grpo(lambda config: config.num_generations)),
        number("trl.max_completion_length", "completion_length", write=_of_grpo(scored_tokens)),
        Row("trl.beta", ("beta",), beta, _of_grpo(beta_of)),
        Row("fsdp_config.fsdp_version", ("fsdp_version", "fsdp"),
            lambda value: {} if value is None else {"fsdp_version": integer(value), "fsdp": True}),
        Row("dp_shard_size", ("world_size",), whole("world_size")),
        Row("batch_size", ("batch_of_step",), whole("batch_of_step")),
        Row("image_size", ("image_size",), side,
            lambda config: config.image_size or LEFT_OUT),
        Row("freeze_mm_modules", ("vision",), frozen_vision,
            on_if(lambda config: config.vision == "frozen")),
        named_file("deepspeed"),
        *under("deepspeed", DEEPSPEED, is_zero),
    ),
)  # fmt: skip

_REWARDS = ["rewards.rand_reward_func"]  # in rewards.py beside the file: the user's own


def _complete(rung: StackRung, settings: Settings) -> Settings:
    """The data set and the learning rate are examples to replace."""
    examples = exports_data("axolotl")
    head: Settings = {"base_model": rung.model}
    settings = head | settings
    if is_fsdp(rung.config):
        settings["fsdp_config"] = examples["fsdp"] | settings.get("fsdp_config", {})
    if rung.revision:
        settings["model_revision"] = rung.revision
    if rung.trust_remote_code:
        settings["trust_remote_code"] = True
    if rung.config.objective == "grpo":
        settings["trl"]["reward_funcs"] = _REWARDS
    settings |= examples["objectives"][rung.config.objective] | examples["settings"]
    return settings | {"learning_rate": learning_rate(rung.config)}


def _precision(
    given: PartialConfig, found: RungKeys, said: Collection[str], weights: str, mixed: str
) -> tuple[str, str]:
    """Weights are loaded in the dtype of the computation (`resolve_dtype`)."""
    if given.get("mixed_float16") and "mixed_bfloat16" not in said:
        mixed = "float16"  # bf16: auto gives way
    if weights == "float32" and "mixed_bfloat16" not in said:
        return "float32", "none" if mixed == "bfloat16" else mixed
    if mixed != "none":
        return mixed, mixed
    return ("float32" if weights == "auto" else weights), "none"


def _adapters(given: PartialConfig, found: RungKeys) -> str | None:
    """`ensure_dtype` casts them where FSDP shards pairs and generations."""
    sharded = str(found.get("sharding", "")).startswith(("fsdp", "hybrid"))
    return OF_WEIGHTS if sharded and found.get("objective") in ("dpo", "grpo") else None


PROGRAM = Program(
    **facts("axolotl"),
    names=AXOLOTL,
    precision=_precision,
    adapters=_adapters,
    complete=_complete,
)
