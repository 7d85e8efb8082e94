"""axolotl's configuration. Names are those of axolotl 0.19."""

from __future__ import annotations

from collections.abc import Collection

from oomdoctor.records.config import TrainConfig, is_fsdp, is_zero, scored_tokens
from oomdoctor.stacks.names.fsdp import NEUTRAL, rows
from oomdoctor.stacks.names.images import frozen_vision, side
from oomdoctor.stacks.names.peft import (
    adapted,
    bits,
    in_four_bits,
    share,
    upcast_adapters,
    variants,
)
from oomdoctor.stacks.names.row import LEFT_OUT, NotTakenError, Read, Row, Settings, table
from oomdoctor.stacks.names.techniques import LOW_RANK_MAPPING, fp8_row
from oomdoctor.stacks.names.values import (
    flag,
    integer,
    named_file,
    names_in,
    number,
    only_if,
    optimizer,
    switch,
    target_words,
    targets,
    text_of,
)
from oomdoctor.stacks.partial_config import PartialConfig, RungKeys
from oomdoctor.stacks.programs.arguments import attention
from oomdoctor.stacks.programs.deepspeed import DEEPSPEED, under
from oomdoctor.stacks.programs.program import OF_WEIGHTS, Program
from oomdoctor.stacks.programs.trl import beta, beta_of, precomputed
from oomdoctor.stacks.rung import StackRung, learning_rate

_ADAPTERS = {"lora": "lora", "qlora": "qlora"}
_OPTIMIZERS = {"ao_adamw_4bit": "adamw_torch_4bit", "ao_adamw_8bit": "adamw_torch_8bit"}
_OLD_ATTENTION = {
    "flash_attention": "flash_attention_2",
    "sdp_attention": "sdpa",
    "eager_attention": "eager",
    "flex_attention": "flex_attention",
}
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


def _weights(name: str) -> Read:
    return lambda value: {"weights_dtype": name} if value is not None and flag(value) else {}


def _adapter(value: object) -> PartialConfig:
    if value is None or str(value).strip() == "":
        return {"method": "full"}
    word = str(value).strip().lower()
    if word not in _ADAPTERS:
        raise NotTakenError(f"a rung has no adapter {value}")
    return {"method": _ADAPTERS[word]}


def _adapter_word(config: TrainConfig) -> object:
    if config.method == "full":
        return LEFT_OUT
    return "qlora" if config.quantization == "nf4" else "lora"


def _optimizer(value: object) -> PartialConfig:
    word = str(value).strip().lower()
    return {"optimizer": _OPTIMIZERS.get(word) or optimizer(word)}


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


def _linear(value: object) -> PartialConfig:
    return {"lora_targets": "all-linear"} if value is not None and flag(value) else {}


def _fsdp_list(value: object) -> PartialConfig:
    """The list that FSDP 1 was asked for with."""
    found: PartialConfig = {"fsdp": True} if value else {}
    return found | {"fsdp_offload": True} if "offload" in names_in(value) else found


def _old_attention(name: str) -> Read:
    return lambda value: {"attention": name} if value is not None and flag(value) else {}


def _rl(value: object) -> PartialConfig:
    if value is None:
        return {}
    word = str(value).strip().lower()
    if word not in ("dpo", "grpo"):
        raise NotTakenError(f"a rung has no objective {value}")
    return {"objective": word}


def _autocasts(config: TrainConfig) -> bool:
    """Whether 16-bit training is on: axolotl then always uses autocast, ZeRO aside."""
    return "bfloat16" in (config.autocast_dtype, config.weights_dtype)


def _half(config: TrainConfig) -> bool:
    return not _autocasts(config) and "float16" in (config.autocast_dtype, config.weights_dtype)


AXOLOTL = table(
    "axolotl",
    (
        text_of("base_model", "model"),
        text_of("model_revision", "revision"),
        number("sequence_len", "sequence_length"),
        number("micro_batch_size", "micro_batch_size"),
        Row("gradient_accumulation_steps", ("accumulation_steps",),
            number("", "accumulation_steps").read,
            lambda config: config.accumulation_steps()),
        Row("optimizer", ("optimizer",), _optimizer, _optimizer_word),
        Row("bf16", ("mixed_bfloat16",), _bf16, _autocasts),
        Row("fp16", ("mixed_float16",),
            lambda value: {} if value is None else {"mixed_float16": flag(value)}, _half),
        Row("bfloat16", ("weights_dtype",), _weights("bfloat16")),
        Row("float16", ("weights_dtype",), _weights("float16")),
        Row("float32", ("weights_dtype",), _weights("float32"),
            lambda config: LEFT_OUT if _autocasts(config) or _half(config) else True),
        Row("gradient_checkpointing", ("checkpointing",), _checkpointing,
            lambda config: config.activation_checkpointing != "none"),
        Row("gradient_checkpointing_kwargs.use_reentrant", (), lambda _: {},
            lambda c: False if c.activation_checkpointing in ("full", "every_n") else LEFT_OUT),
        Row("activation_offloading", ("activation_offloading",), _offloading,
            lambda config: True if _offloads(config) else LEFT_OUT),
        Row("attn_implementation", ("attention",), attention, lambda config: config.attention),
        *(Row(name, ("attention",), _old_attention(value))
          for name, value in _OLD_ATTENTION.items()),
        Row("adapter", ("method",), _adapter, _adapter_word),
        *variants("peft_use_dora", "peft_use_rslora", "lora_modules_to_save"),
        upcast_adapters("peft_autocast_adapter_dtype"),
        only_if(Row("load_in_4bit", ("bits_4",), bits(4), in_four_bits), in_four_bits),
        only_if(Row("load_in_8bit", ("bits_8",), bits(8), lambda c: c.quantization == "int8"),
                lambda config: config.quantization == "int8"),
        only_if(number("lora_r", "lora_rank"), adapted),
        only_if(number("lora_alpha", "lora_alpha"), adapted),
        only_if(Row("lora_dropout", ("lora_dropout",), share, lambda c: c.lora_dropout), adapted),
        only_if(Row("lora_target_linear", ("lora_targets",), _linear,
                    lambda c: True if c.lora_targets == "all-linear" else LEFT_OUT), adapted),
        only_if(Row("lora_target_modules", ("lora_targets",), targets,
                    lambda c: LEFT_OUT if c.lora_targets == "all-linear" else target_words(c)),
                adapted),
        only_if(Row("bnb_config_kwargs.bnb_4bit_use_double_quant", ("double_quant",),
                    lambda value: {"double_quant": flag(value)},
                    lambda c: LEFT_OUT if c.double_quant else False), in_four_bits),
        only_if(Row("bnb_config_kwargs.bnb_4bit_quant_storage", ("quant_storage",),
                    lambda value: {"quant_storage": str(value)},
                    lambda c: LEFT_OUT if c.quant_storage == "bfloat16" else c.quant_storage),
                in_four_bits),
        *LOW_RANK_MAPPING,
        fp8_row("fp8"),
        switch("torch_compile", "compile", True, False),
        Row("plugins", ("plugins",), lambda _: {},
            lambda config: [_LIGER] if config.loss == "liger" else LEFT_OUT),
        only_if(switch("liger_fused_linear_cross_entropy", "loss", "liger", "default"),
                lambda config: config.loss == "liger"),
        Row("sample_packing", ("trl_packing",),
            lambda value: {} if value is None else {"trl_packing": flag(value)},
            lambda config: config.packing == "packed"),
        Row("batch_flattening", ("trl_padding_free",),
            lambda value: {} if value in (None, "auto") else {"trl_padding_free": flag(value)},
            lambda config: True if config.packing == "padding_free" else LEFT_OUT),
        # Rows are then as long as sequence_len, which is cut to no multiple.
        Row("pad_to_sequence_len", ("pads_to",),
            lambda value: {"pads_to": WHOLE_ROW} if value is not None and flag(value) else {},
            lambda config: True if config.padding == "max_length" else LEFT_OUT),
        Row("ddp_bucket_cap_mb", ("bucket_mib",),
            lambda value: {} if value is None else {"bucket_mib": integer(value)}),
        Row("fsdp", ("fsdp",), _fsdp_list),
        Row("fsdp_version", ("fsdp_version", "fsdp"),
            lambda value: {"fsdp_version": integer(value), "fsdp": True},
            lambda config: config.fsdp_version if is_fsdp(config) else LEFT_OUT),
        *(row for row in rows("fsdp_config", "") if row.name in _FSDP_ROWS),
        Row("fsdp_config.offload_params", ("fsdp_offload",),
            lambda value: {} if value is None else {"fsdp_offload": flag(value)},
            lambda c: c.offload == "parameters" if is_fsdp(c) else LEFT_OUT,
            ("fsdp_config.fsdp_offload_params",)),
        Row("rl", ("objective",), _rl,
            lambda c: c.objective if c.objective in ("dpo", "grpo") else LEFT_OUT),
        Row("reward_model", ("objective",),
            lambda value: {"objective": "reward"} if value and flag(value) else {},
            lambda config: True if config.objective == "reward" else LEFT_OUT),
        Row("precompute_ref_log_probs", ("reference",), precomputed,
            lambda config: True if config.reference == "precomputed" else LEFT_OUT),
        Row("trl.num_generations", ("num_generations",),
            number("", "num_generations").read,
            lambda c: c.num_generations if c.objective == "grpo" else LEFT_OUT),
        Row("trl.max_completion_length", ("completion_length",),
            number("", "completion_length").read,
            lambda c: scored_tokens(c) if c.objective == "grpo" else LEFT_OUT),
        Row("trl.beta", ("beta",), beta,
            lambda c: beta_of(c) if c.objective == "grpo" else LEFT_OUT),
        Row("fsdp_config.fsdp_version", ("fsdp_version", "fsdp"),
            lambda value: {} if value is None else {"fsdp_version": integer(value), "fsdp": True}),
        Row("dp_shard_size", ("world_size",), number("", "world_size").read),
        Row("batch_size", ("batch_of_step",), number("", "batch_of_step").read),
        Row("image_size", ("image_size",), side,
            lambda config: config.image_size or LEFT_OUT),
        Row("freeze_mm_modules", ("vision",), frozen_vision,
            lambda config: True if config.vision == "frozen" else LEFT_OUT),
        named_file("deepspeed"),
        *under("deepspeed", DEEPSPEED, is_zero),
    ),
    frozenset(f"fsdp_config.{head}{name}" for head in ("", "fsdp_") for name in NEUTRAL),
)  # fmt: skip

# Data sets of the right form, which the user replaces, and what the objective needs beside them.
_SFT: dict[str, object] = {"datasets": [{"path": "tatsu-lab/alpaca", "type": "alpaca"}]}
_OBJECTIVES: dict[str, dict[str, object]] = {
    "dpo": {
        "datasets": [{"path": "Intel/orca_dpo_pairs", "split": "train", "type": "chatml.intel"}]
    },
    "reward": {
        "model_type": "AutoModelForSequenceClassification",
        "num_labels": 1,
        "remove_unused_columns": False,
        "datasets": [
            {"path": "argilla/distilabel-intel-orca-dpo-pairs",
             "type": "bradley_terry.chat_template"}
        ],
    },
    "grpo": {
        "datasets": [
            {"path": "openai/gsm8k", "name": "main", "type": "rewards.oai_gsm8k_transform"}
        ]
    },
}  # fmt: skip
_REWARDS = ["rewards.rand_reward_func"]  # in rewards.py beside the file: the user's own


def _complete(rung: StackRung, settings: Settings) -> Settings:
    """The data set and the learning rate are examples to replace."""
    head: Settings = {"base_model": rung.model}
    settings = head | settings
    if is_fsdp(rung.config):
        settings["fsdp_config"] = {
            "auto_wrap_policy": "TRANSFORMER_BASED_WRAP",
            "state_dict_type": "FULL_STATE_DICT",
        } | settings.get("fsdp_config", {})
    if rung.revision:
        settings["model_revision"] = rung.revision
    if rung.trust_remote_code:
        settings["trust_remote_code"] = True
    if rung.config.objective == "grpo":
        settings["trl"]["reward_funcs"] = _REWARDS
    settings |= {
        **_OBJECTIVES.get(rung.config.objective, _SFT),
        "output_dir": "./outputs",
        "num_epochs": 1,
        "learning_rate": learning_rate(rung.config),
        "lr_scheduler": "cosine",
    }
    return settings


def _command(config: TrainConfig) -> str:
    several = f" --num-processes {config.world_size}" if config.world_size > 1 else ""
    return f"axolotl train train.yaml{several}"


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
    "axolotl",
    title="axolotl train",
    package="axolotl",
    version="0.19.0",
    file="train.yaml",
    reads="the file of `axolotl train`",
    writes="a configuration for `axolotl train`",
    names=AXOLOTL,
    marks=frozenset({"base_model", "sequence_len"}),
    precision=_precision,
    adapters=_adapters,
    offloads_checkpoints=True,
    complete=_complete,
    command=_command,
    beside={
        "epochs": "num_epochs",
        "schedule": "lr_scheduler",
        "beta_of_dpo": "rl_beta",
        "beta_of_grpo": "trl.beta",
        "eval_batch_size": "eval_batch_size",
        "eval_accumulation_steps": None,
    },
)
