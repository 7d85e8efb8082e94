"""LLaMA-Factory: its own settings beside transformers' `TrainingArguments`.

Names are those of LLaMA-Factory 0.9.5.
"""

from __future__ import annotations

from collections.abc import Collection

from oomdoctor.records.configuration.config import TrainConfig, is_zero
from oomdoctor.stacks.names.peft import (
    adapted,
    in_four_bits,
    lora_rows,
    share,
    trained_whole,
    variants,
)
from oomdoctor.stacks.names.row import (
    LEFT_OUT,
    NotTakenError,
    Row,
    Settings,
    exports_data,
    table,
    words_of,
)
from oomdoctor.stacks.names.techniques import (
    backend_row,
    fp8_row,
    frozen_vision,
    projected,
    side_of_pixels,
)
from oomdoctor.stacks.names.values import (
    among,
    flag,
    flagged,
    given,
    if_on,
    integer,
    nothing,
    number,
    on_if,
    only_if,
    switch,
    switched,
    target_words,
    targets,
    text_of,
    whole,
    words,
)
from oomdoctor.stacks.partial_config import PartialConfig, RungKeys, only
from oomdoctor.stacks.programs.arguments import ARGUMENTS, computes
from oomdoctor.stacks.programs.program import Program, facts
from oomdoctor.stacks.programs.trl import is_packed
from oomdoctor.stacks.rung import StackRung, learning_rate, not_in

_STAGES = {"default": "sft", "dpo": "dpo", "reward": "rm"}
_QUANTIZED = {"nf4": 4, "int8": 8}


def _all_layers(value: object) -> PartialConfig:
    raise NotTakenError(f"LLaMA-Factory checkpoints whole layers in its own way, not by {value}")


def _layers(value: object) -> PartialConfig:
    count = integer(value)
    if count < 1:
        raise NotTakenError("a rung trains the last layers, not the first")
    return {"trainable_layers": count}


def _bits(value: object) -> PartialConfig:
    if value is None:
        return {}
    count = integer(value)
    if count not in (4, 8):
        raise NotTakenError(f"a rung quantizes to 4 or 8 bits, not to {value}")
    return only(f"bits_{count}", True)


def _targets(config: TrainConfig) -> str:
    found = target_words(config)
    return "all" if found == "all-linear" else found if isinstance(found, str) else ",".join(found)


def _pure(config: TrainConfig) -> bool:
    """DeepSpeed trains 16-bit weights without it, and LLaMA-Factory refuses it with ZeRO-3."""
    plain = config.weights_dtype == "bfloat16" and config.autocast_dtype == "none"
    return plain and not is_zero(config)


# The files of its new engine (USE_V1=1) have other names.


def _v1_model(value: object) -> PartialConfig:
    return {"first_version": True, "model": str(value)} if value else {"first_version": True}


def _v1_bits(value: object) -> PartialConfig:
    return {} if value is None else only(f"bits_{integer(value)}", True)


FIRST_VERSION = (
    Row("model", ("model",), _v1_model),
    Row("peft_config.name", ("method_of_first",),
        among("llama-factory v1 method", "a rung has no method {}")),
    Row("peft_config.r", ("lora_rank",), whole("lora_rank")),
    Row("peft_config.lora_alpha", ("lora_alpha",), whole("lora_alpha")),
    Row("peft_config.lora_dropout", ("lora_dropout",), share),
    Row("peft_config.target_modules", ("lora_targets",), targets),
    Row("peft_config.modules_to_save", ("modules_to_save",), trained_whole),
    Row("peft_config.use_dora", ("use_dora",), flagged("use_dora")),
    Row("peft_config.use_rslora", ("use_rslora",), flagged("use_rslora")),
    Row("peft_config.freeze_trainable_layers", ("trainable_layers",),
        given("trainable_layers", integer)),
    Row("micro_batch_size", ("micro_batch_size",), whole("micro_batch_size")),
    Row("global_batch_size", ("effective_batch_size",), whole("effective_batch_size")),
    Row("enable_activation_checkpointing", ("checkpointing",), switched("checkpointing")),
    Row("quant_config.quantization_bit", ("bits_4", "bits_8"), _v1_bits),
    Row("quant_config.double_quantization", ("double_quant",), flagged("double_quant")),
    Row("dist_config.name", ("fsdp",),
        among("llama-factory v1 engine", "a rung does not have the engine {} of this file")),
)  # fmt: skip

LLAMA_FACTORY = ARGUMENTS | table(
    "llama-factory",
    (
        text_of("model_name_or_path", "model"),
        text_of("model_revision", "revision"),
        Row("stage", ("objective",),
            among("llama-factory stage", "a rung has no stage {}; sft is taken"),
            lambda c: _STAGES.get(c.objective, LEFT_OUT)),
        Row("finetuning_type", ("method",),
            among("llama-factory method", "a rung has no method {}; lora is taken"),
            lambda config: "full" if config.method == "full" else "lora"),
        Row("freeze_trainable_layers", ("trainable_layers",), _layers),
        number("cutoff_len", "sequence_length"),
        words("flash_attn", "attention", words_of("llama-factory attention")),
        Row("disable_gradient_checkpointing", ("checkpointing",),
            lambda value: {"checkpointing": not flag(value)},
            lambda config: config.activation_checkpointing == "none"),
        Row("gradient_checkpointing", ("checkpointing_of_trainer",), nothing),
        Row("gradient_checkpointing_kwargs.use_reentrant", (), nothing),
        Row("gradient_checkpointing_kwargs.every_n_layers", (), _all_layers),
        Row("gradient_checkpointing_kwargs.offload", (), _all_layers),
        Row("use_reentrant_gc", (), nothing,
            lambda config: False if config.activation_checkpointing != "none" else LEFT_OUT),
        Row("pure_bf16", ("pure_bf16",), flagged("pure_bf16"), _pure),
        Row("bf16", ("mixed_bfloat16",), switched("mixed_bfloat16"),
            lambda config: computes(config, "bfloat16")),
        *lora_rows("lora_rank", "lora_alpha", "lora_dropout"),
        only_if(Row("lora_target", ("lora_targets",), targets, _targets), adapted),
        *variants("use_dora", "use_rslora", "additional_target", joined=True),
        Row("quantization_bit", ("bits_4", "bits_8"), _bits,
            lambda config: _QUANTIZED.get(config.quantization, LEFT_OUT)),
        Row("quantization_method", (), nothing,
            lambda config: "bnb" if config.quantization != "none" else LEFT_OUT),
        only_if(Row("double_quantization", ("double_quant",), flagged("double_quant"),
                    lambda c: c.double_quant), in_four_bits),
        fp8_row("fp8"),
        backend_row("fp8_backend", ("torchao", "te")),
        switch("enable_liger_kernel", "loss", "liger", "default"),
        Row("use_liger_kernel", ("loss",), switch("", "loss", "liger", "default").read),
        Row("use_unsloth", ("library",), if_on({"library": "unsloth"}),
            on_if(lambda config: config.library == "unsloth")),
        Row("use_galore", ("projected",), if_on({"projected": "galore"})),
        Row("use_apollo", ("projected",), if_on({"projected": "apollo"})),
        Row("galore_layerwise", ("layerwise",), switched("layerwise"), None,
            ("apollo_layerwise",)),
        Row("galore_rank", ("projected_rank",), whole("projected_rank"), None, ("apollo_rank",)),
        Row("galore_target", (), projected, None, ("apollo_target",)),
        Row("image_max_pixels", ("image_size",), side_of_pixels,
            lambda config: config.image_size**2 or LEFT_OUT),
        Row("freeze_vision_tower", ("vision",), frozen_vision,
            on_if(lambda config: config.vision == "frozen")),
        *FIRST_VERSION,
        Row("packing", ("trl_packing_of_length",), nothing),
        Row("neat_packing", ("trl_packing",), switched("trl_packing"), is_packed),
    ),
)  # fmt: skip


def _complete(rung: StackRung, settings: Settings) -> Settings:
    """The data set, its template and the learning rate are examples to replace.

    Raises:
        OomDoctorError: LLaMA-Factory has no such objective (exit 3).
    """
    objective, examples = rung.config.objective, exports_data("llama-factory")
    if objective not in examples["objectives"]:
        raise not_in("llama-factory", f"objective = {objective}", "use --to trl or --to axolotl")
    head: Settings = {"model_name_or_path": rung.model}
    if rung.revision:
        head["model_revision"] = rung.revision
    if rung.trust_remote_code:
        head["trust_remote_code"] = True
    settings = head | settings | examples["objectives"][objective] | examples["settings"]
    return settings | {"learning_rate": learning_rate(rung.config)}


def _prepare(given: PartialConfig, said: Collection[str]) -> None:
    """LLaMA-Factory's new engine trains all weights unless a file names an adapter."""
    if given.get("first_version"):
        given["method"] = given.get("method_of_first", "full")
        if "mixed_bfloat16" not in said:
            given["mixed_bfloat16"] = True
        if "micro_batch_size" not in said:
            given["micro_batch_size"] = 1
    _of_projection(given)


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
    if "method" not in found:
        return weights, mixed
    if found["method"] == "full" and mixed != "none" and found.get("sharding") != "zero3":
        return "float32", mixed
    return (mixed if mixed != "none" else weights), mixed


def _adapters(given: PartialConfig, found: RungKeys) -> str | None:
    """Its trainers cast nothing, so those for pairs differ from TRL's."""
    pure = given.get("pure_bf16") or given.get("first_version")
    pure = pure or (found.get("sharding") == "zero3" and found["method"] != "qlora")
    return None if pure and found.get("modules_to_save") else "float32"


PROGRAM = Program(
    **facts("llama-factory"),
    names=LLAMA_FACTORY,
    prepare=_prepare,
    decide=_decide,
    precision=_precision,
    adapters=_adapters,
    complete=_complete,
)
