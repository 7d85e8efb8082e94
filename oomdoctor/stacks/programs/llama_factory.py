"""LLaMA-Factory: its own settings beside transformers' `TrainingArguments`.

Names are those of LLaMA-Factory 0.9.5.
"""

from __future__ import annotations

from collections.abc import Collection

from oomdoctor.records.config import TrainConfig, is_zero
from oomdoctor.stacks.names.images import frozen_vision, side_of_pixels
from oomdoctor.stacks.names.peft import adapted, share, trained_whole, variants
from oomdoctor.stacks.names.row import LEFT_OUT, NotTakenError, Read, Row, Settings, listed, table
from oomdoctor.stacks.names.techniques import backend_row, fp8_row, projected
from oomdoctor.stacks.names.values import (
    flag,
    integer,
    number,
    only_if,
    switch,
    target_words,
    targets,
    text_of,
    words,
)
from oomdoctor.stacks.partial_config import PartialConfig, RungKeys, only
from oomdoctor.stacks.programs.arguments import ARGUMENTS, computes
from oomdoctor.stacks.programs.program import Program
from oomdoctor.stacks.rung import StackRung, learning_rate, not_in

_ATTENTION = {
    "sdpa": "sdpa",
    "auto": "sdpa",
    "disabled": "eager",
    "fa2": "flash_attention_2",
    "fa3": "flash_attention_3",
}
_METHODS = {"full": "full", "lora": "lora"}
_STAGES = {"sft": "default", "pt": "default", "dpo": "dpo", "rm": "reward"}


def _kind(value: object) -> PartialConfig:
    word = str(value).strip().lower()
    if word == "freeze":
        return {"method": "full", "freezes": True}
    if word not in _METHODS:
        raise NotTakenError(f"a rung has no method {value}; lora is taken")
    return {"method": _METHODS[word]}


def _all_layers(value: object) -> PartialConfig:
    raise NotTakenError(f"LLaMA-Factory checkpoints whole layers in its own way, not by {value}")


def _layers(value: object) -> PartialConfig:
    count = integer(value)
    if count < 1:
        raise NotTakenError("a rung trains the last layers, not the first")
    return {"trainable_layers": count}


def _stage(value: object) -> PartialConfig:
    word = str(value).strip().lower()
    if word not in _STAGES:
        raise NotTakenError(f"a rung has no stage {value}; sft is taken")
    return {"objective": _STAGES[word]}


def _stage_word(config: TrainConfig) -> object:
    spoken = {"default": "sft", "dpo": "dpo", "reward": "rm"}
    return spoken.get(config.objective, LEFT_OUT)


def _bits(value: object) -> PartialConfig:
    if value is None:
        return {}
    count = integer(value)
    if count not in (4, 8):
        raise NotTakenError(f"a rung quantizes to 4 or 8 bits, not to {value}")
    return only(f"bits_{count}", True)


def _bits_of(config: TrainConfig) -> object:
    return {"nf4": 4, "int8": 8}.get(config.quantization, LEFT_OUT)


def _targets(config: TrainConfig) -> str:
    found = target_words(config)
    return "all" if found == "all-linear" else found if isinstance(found, str) else ",".join(found)


def _pure(config: TrainConfig) -> bool:
    """DeepSpeed trains 16-bit weights without it, and LLaMA-Factory refuses it with ZeRO-3."""
    plain = config.weights_dtype == "bfloat16" and config.autocast_dtype == "none"
    return plain and not is_zero(config)


def _packing(value: object) -> PartialConfig:
    return {} if value is None else {"trl_packing": flag(value)}


def _library(value: object) -> PartialConfig:
    return {"library": "unsloth"} if value is not None and flag(value) else {}


def _projected(name: str) -> Read:
    return lambda value: {"projected": name} if value is not None and flag(value) else {}


def _layerwise(value: object) -> PartialConfig:
    return {} if value is None else {"layerwise": flag(value)}


def _four(config: TrainConfig) -> bool:
    return config.quantization == "nf4"


# The files of its new engine (USE_V1=1), whose names differ from its usual ones.
_V1_ENGINES: dict[str, PartialConfig] = {
    "fsdp2": {"fsdp": True, "fsdp_version": 2, "distributed": "fsdp"},
}


def _v1_model(value: object) -> PartialConfig:
    return {"first_version": True, "model": str(value)} if value else {"first_version": True}


def _v1_adapter(value: object) -> PartialConfig:
    word = str(value).strip().lower()
    if word not in ("lora", "freeze"):
        raise NotTakenError(f"a rung has no method {value}")
    return {"method_of_first": "lora"} if word == "lora" else {"freezes": True}


def _v1_layers(value: object) -> PartialConfig:
    return {} if value is None else {"trainable_layers": integer(value)}


def _v1_engine(value: object) -> PartialConfig:
    word = str(value).strip().lower()
    if word not in _V1_ENGINES:
        raise NotTakenError(f"a rung does not have the engine {value} of this file")
    return _V1_ENGINES[word]


def _v1_bits(value: object) -> PartialConfig:
    return {} if value is None else only(f"bits_{integer(value)}", True)


FIRST_VERSION = (
    Row("model", ("model",), _v1_model),
    Row("peft_config.name", ("method_of_first",), _v1_adapter),
    Row("peft_config.r", ("lora_rank",), number("", "lora_rank").read),
    Row("peft_config.lora_alpha", ("lora_alpha",), number("", "lora_alpha").read),
    Row("peft_config.lora_dropout", ("lora_dropout",), share),
    Row("peft_config.target_modules", ("lora_targets",), targets),
    Row("peft_config.modules_to_save", ("modules_to_save",), trained_whole),
    Row("peft_config.use_dora", ("use_dora",), lambda value: {"use_dora": flag(value)}),
    Row("peft_config.use_rslora", ("use_rslora",), lambda value: {"use_rslora": flag(value)}),
    Row("peft_config.freeze_trainable_layers", ("trainable_layers",), _v1_layers),
    Row("micro_batch_size", ("micro_batch_size",), number("", "micro_batch_size").read),
    Row("global_batch_size", ("effective_batch_size",), number("", "effective_batch_size").read),
    Row("enable_activation_checkpointing", ("checkpointing",),
        switch("", "checkpointing", True, False).read),
    Row("quant_config.quantization_bit", ("bits_4", "bits_8"), _v1_bits),
    Row("quant_config.double_quantization", ("double_quant",),
        lambda value: {"double_quant": flag(value)}),
    Row("dist_config.name", ("fsdp",), _v1_engine),
)  # fmt: skip

LLAMA_FACTORY = ARGUMENTS | table(
    "llama-factory",
    (
        text_of("model_name_or_path", "model"),
        text_of("model_revision", "revision"),
        Row("stage", ("objective",), _stage, _stage_word),
        Row("finetuning_type", ("method",), _kind,
            lambda config: "full" if config.method == "full" else "lora"),
        Row("freeze_trainable_layers", ("trainable_layers",), _layers),
        number("cutoff_len", "sequence_length"),
        words("flash_attn", "attention", _ATTENTION),
        Row("disable_gradient_checkpointing", ("checkpointing",),
            lambda value: {"checkpointing": not flag(value)},
            lambda config: config.activation_checkpointing == "none"),
        Row("gradient_checkpointing", ("checkpointing_of_trainer",),
            lambda _: {}),
        Row("gradient_checkpointing_kwargs.use_reentrant", (), lambda _: {}),
        Row("gradient_checkpointing_kwargs.every_n_layers", (), _all_layers),
        Row("gradient_checkpointing_kwargs.offload", (), _all_layers),
        Row("use_reentrant_gc", (), lambda _: {},
            lambda config: False if config.activation_checkpointing != "none" else LEFT_OUT),
        Row("pure_bf16", ("pure_bf16",),
            lambda value: {"pure_bf16": flag(value)}, _pure),
        Row("bf16", ("mixed_bfloat16",),
            lambda value: {} if value is None else {"mixed_bfloat16": flag(value)},
            lambda config: computes(config, "bfloat16")),
        only_if(number("lora_rank", "lora_rank"), adapted),
        only_if(number("lora_alpha", "lora_alpha"), adapted),
        only_if(Row("lora_dropout", ("lora_dropout",), share, lambda c: c.lora_dropout), adapted),
        only_if(Row("lora_target", ("lora_targets",), targets, _targets), adapted),
        *variants("use_dora", "use_rslora", "additional_target", joined=True),
        Row("quantization_bit", ("bits_4", "bits_8"), _bits, _bits_of),
        only_if(Row("quantization_method", (), lambda _: {}, lambda _: "bnb"), lambda c:
                c.quantization != "none"),
        only_if(Row("double_quantization", ("double_quant",),
                    lambda value: {"double_quant": flag(value)}, lambda c: c.double_quant), _four),
        fp8_row("fp8"),
        backend_row("fp8_backend", ("torchao", "te")),
        switch("enable_liger_kernel", "loss", "liger", "default"),
        Row("use_liger_kernel", ("loss",), switch("", "loss", "liger", "default").read),
        Row("use_unsloth", ("library",), _library,
            lambda config: True if config.library == "unsloth" else LEFT_OUT),
        Row("use_galore", ("projected",), _projected("galore")),
        Row("use_apollo", ("projected",), _projected("apollo")),
        Row("galore_layerwise", ("layerwise",), _layerwise, None, ("apollo_layerwise",)),
        Row("galore_rank", ("projected_rank",), number("", "projected_rank").read, None,
            ("apollo_rank",)),
        Row("galore_target", (), projected, None, ("apollo_target",)),
        Row("image_max_pixels", ("image_size",), side_of_pixels,
            lambda config: config.image_size**2 or LEFT_OUT),
        Row("freeze_vision_tower", ("vision",), frozen_vision,
            lambda config: True if config.vision == "frozen" else LEFT_OUT),
        *FIRST_VERSION,
        Row("packing", ("trl_packing_of_length",), lambda _: {}),
        Row("neat_packing", ("trl_packing",), _packing, lambda c: c.packing == "packed"),
    ),
)  # fmt: skip

# Data sets of its own that are of the right form.
_DATA = {"default": "alpaca_en_demo", "dpo": "dpo_en_demo", "reward": "dpo_en_demo"}


def _complete(rung: StackRung, settings: Settings) -> Settings:
    """The data set, its template and the learning rate are examples to replace.

    Raises:
        OomDoctorError: LLaMA-Factory has no such objective (exit 3).
    """
    objective = rung.config.objective
    if objective not in _DATA:
        raise not_in("llama-factory", f"objective = {objective}", "use --to trl or --to axolotl")
    head: Settings = {"model_name_or_path": rung.model}
    if rung.revision:
        head["model_revision"] = rung.revision
    if rung.trust_remote_code:
        head["trust_remote_code"] = True
    settings = head | settings
    if objective == "dpo":
        settings |= {"pref_beta": 0.1, "pref_loss": "sigmoid"}
    settings |= {
        "do_train": True,
        "dataset": _DATA[objective],
        "template": "default",
        "output_dir": "./outputs",
        "num_train_epochs": 1,
        "learning_rate": learning_rate(rung.config),
        "lr_scheduler_type": "cosine",
    }
    return settings


def _command(config: TrainConfig) -> str:
    several = "FORCE_TORCHRUN=1 " if config.world_size > 1 else ""
    return f"{several}llamafactory-cli train train.yaml"


def _prepare(given: PartialConfig, said: Collection[str]) -> None:
    _of_first_version(given, said)
    _of_projection(given)


def _of_first_version(given: PartialConfig, said: Collection[str]) -> None:
    """LLaMA-Factory's new engine trains all weights unless a file names an adapter."""
    if given.get("first_version"):
        given["method"] = given.get("method_of_first", "full")
        if "mixed_bfloat16" not in said:
            given["mixed_bfloat16"] = True
        if "micro_batch_size" not in said:
            given["micro_batch_size"] = 1


def _of_projection(given: PartialConfig) -> None:
    """LLaMA-Factory's switches for GaLore and APOLLO, around the optimizer that it has."""
    name = given.get("projected")
    if not name:
        return
    own = str(given.get("optimizer", "adamw_torch"))
    kind = "adafactor" if own == "adafactor" else "adamw_8bit" if "8bit" in own else "adamw"
    word = f"{name}_{kind if name == 'galore' else 'adamw'}"
    given["optimizer"] = f"{word}_layerwise" if given.get("layerwise") else word
    given["optimizer_rank"] = given.get("projected_rank", 16)


def _decide(given: PartialConfig, found: RungKeys) -> RungKeys:
    """The scale of adapters is twice their rank."""
    return {} if "lora_alpha" in found else {"lora_alpha": 2 * found.get("lora_rank", 8)}


def _precision(
    given: PartialConfig, found: RungKeys, said: Collection[str], weights: str, mixed: str
) -> tuple[str, str]:
    """Weights are loaded in 16 bits; those that are trained become fp32, unless pure."""
    if given.get("pure_bf16"):
        return "bfloat16", "none"
    if found["method"] == "full" and mixed != "none" and found.get("sharding") != "zero3":
        return "float32", mixed
    return (mixed if mixed != "none" else weights), mixed


def _adapters(given: PartialConfig, found: RungKeys) -> str | None:
    """Its trainers cast nothing, so those for pairs differ from TRL's."""
    pure = given.get("pure_bf16") or given.get("first_version")
    pure = pure or (found.get("sharding") == "zero3" and found["method"] != "qlora")
    return None if pure and found.get("modules_to_save") else "float32"


PROGRAM = Program(
    "llama-factory",
    title="llamafactory-cli train",
    package="llamafactory",
    version="0.9.5",
    file="train.yaml",
    reads="the file of `llamafactory-cli train`",
    writes="a configuration for `llamafactory-cli train`",
    brand="LLaMA-Factory",
    names=LLAMA_FACTORY,
    marks=listed(
        """
        finetuning_type model_class dist_config cutoff_len template stage quantization_bit pure_bf16
        """
    ),
    prepare=_prepare,
    decide=_decide,
    precision=_precision,
    adapters=_adapters,
    why_adapters="LLaMA-Factory trains in float32, without pure_bf16",
    complete=_complete,
    command=_command,
    beside={"beta_of_dpo": "pref_beta", "beta_of_grpo": None},
)
