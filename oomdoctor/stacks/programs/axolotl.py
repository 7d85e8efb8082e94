"""axolotl's configuration. Names are those of axolotl 0.19."""

from __future__ import annotations

from collections.abc import Collection

from oomdoctor.records.configuration.config import TrainConfig, is_fsdp
from oomdoctor.stacks.names.fsdp import FSDP_CONFIG
from oomdoctor.stacks.names.row import LEFT_OUT, Settings, exports_data, words_of
from oomdoctor.stacks.names.tables import table
from oomdoctor.stacks.names.values import names_in, optimizer_among
from oomdoctor.stacks.partial_config import PartialConfig, RungKeys
from oomdoctor.stacks.programs import arguments
from oomdoctor.stacks.programs.program import OF_WEIGHTS, Program, facts, with_examples
from oomdoctor.stacks.rung import StackRung

_OPTIMIZERS = words_of("axolotl optimizer")
_FSDP = tuple(
    row
    for row in FSDP_CONFIG
    if row.name.endswith((".reshard_after_forward", ".activation_checkpointing", "_strategy"))
)
_optimizer = optimizer_among("axolotl optimizer")


def _adapter_word(config: TrainConfig) -> object:
    if config.method == "full":
        return LEFT_OUT
    return "qlora" if config.quantization == "nf4" else "lora"


def _optimizer_word(config: TrainConfig) -> str:
    spoken = {name: word for word, name in _OPTIMIZERS.items()}
    return spoken.get(config.optimizer, config.optimizer)


def _fsdp_list(value: object) -> PartialConfig:
    """The list that FSDP 1 was asked for with."""
    words: PartialConfig = {"fsdp": True} if value else {}
    return words | {"fsdp_offload": True} if "offload" in names_in(value) else words


def _autocasts(config: TrainConfig) -> bool:
    """Whether 16-bit training is on: axolotl then always uses autocast, ZeRO aside."""
    return "bfloat16" in (config.autocast_dtype, config.weights_dtype)


def _half(config: TrainConfig) -> bool:
    return not _autocasts(config) and "float16" in (config.autocast_dtype, config.weights_dtype)


def _in_32_bits(config: TrainConfig) -> bool:
    return not (_autocasts(config) or _half(config))


def _tf32(config: TrainConfig) -> object:
    """Its own default is on, which matters for products of float32 alone."""
    multiplied = (config.autocast_dtype, config.weights_dtype) == ("none", "float32")
    return config.tf32 if config.tf32 or multiplied else LEFT_OUT


AXOLOTL = table("axolotl", {**vars(arguments), **globals()})
_REWARDS = ["rewards.rand_reward_func"]  # in rewards.py beside the file: the user's own


def _complete(rung: StackRung, settings: Settings) -> Settings:
    """The data set and the learning rate are examples to replace."""
    settings = {"base_model": rung.model, **settings}
    if is_fsdp(rung.config):
        settings["fsdp_config"] = exports_data("axolotl")["fsdp"] | settings.get("fsdp_config", {})
    if rung.revision:
        settings["model_revision"] = rung.revision
    if rung.trust_remote_code:
        settings["trust_remote_code"] = True
    if rung.config.quantization == "checkpoint" and rung.quant_method == "gptq":
        settings["gptq"] = True
    if rung.config.objective == "grpo":
        settings["trl"]["reward_funcs"] = _REWARDS
    return with_examples("axolotl", rung, settings)


def _precision(
    given: PartialConfig, rung: RungKeys, said: Collection[str], weights: str, mixed: str
) -> tuple[str, str]:
    """Weights are loaded in the dtype of the computation (`resolve_dtype`)."""
    if given.get("mixed_float16") and "mixed_bfloat16" not in said:
        mixed = "float16"  # bf16: auto gives way
    if weights == "float32" and "mixed_bfloat16" not in said:
        return "float32", "none" if mixed == "bfloat16" else mixed
    if mixed != "none":
        return mixed, mixed
    return ("float32" if weights == "auto" else weights), "none"


def _adapters(given: PartialConfig, rung: RungKeys) -> str | None:
    """`ensure_dtype` casts them where FSDP shards pairs and generations."""
    sharded = str(rung.get("sharding", "")).startswith(("fsdp", "hybrid"))
    return OF_WEIGHTS if sharded and rung.get("objective") in ("dpo", "grpo") else None


def _without_idle_tf32(given: PartialConfig, rung: RungKeys) -> RungKeys:
    """By default TF32 is on; a rung without products of float32 does not name it."""
    sharded = str(rung.get("sharding", "")).startswith("zero")  # it casts adapters
    adapted = rung["method"] != "full" and not sharded
    in_32_bits = rung["weights_dtype"] == "float32" or adapted
    return {} if rung["autocast_dtype"] == "none" and in_32_bits else {"tf32": False}


PROGRAM = Program(
    **facts("axolotl"),
    names=AXOLOTL,
    decide=_without_idle_tf32,
    precision=_precision,
    adapters=_adapters,
    complete=_complete,
)
