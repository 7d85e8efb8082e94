"""LLaMA-Factory: its own settings beside transformers' `TrainingArguments`.

Names are those of LLaMA-Factory 0.9.5.
"""

from __future__ import annotations

from collections.abc import Collection

from oomdoctor.records.configuration.config import TrainConfig, is_zero
from oomdoctor.stacks.names.row import NotTakenError, Settings, exports_data
from oomdoctor.stacks.names.tables import table
from oomdoctor.stacks.names.values import integer, target_words
from oomdoctor.stacks.partial_config import PartialConfig, RungKeys
from oomdoctor.stacks.programs.arguments import ARGUMENTS
from oomdoctor.stacks.programs.program import Program, facts, with_examples
from oomdoctor.stacks.rung import StackRung, not_in


def _layers(value: object) -> PartialConfig:
    count = integer(value)
    if count < 1:
        raise NotTakenError("oomdoctor trains the last layers, not the first")
    return {"trainable_layers": count}


def _targets(config: TrainConfig) -> str:
    words = target_words(config)
    return "all" if words == "all-linear" else words if isinstance(words, str) else ",".join(words)


def _saved(config: TrainConfig) -> str:
    return ",".join(config.modules_to_save)


def _pure(config: TrainConfig) -> bool:
    """DeepSpeed trains 16-bit weights without it, and LLaMA-Factory refuses it with ZeRO-3."""
    plain = config.weights_dtype == "bfloat16" and config.autocast_dtype == "none"
    return plain and not is_zero(config)


# The files of its new engine (USE_V1=1) have other names.


def _v1_model(value: object) -> PartialConfig:
    return {"first_version": True, "model": str(value)} if value else {"first_version": True}


LLAMA_FACTORY = ARGUMENTS | table("llama-factory", globals())


def _complete(rung: StackRung, settings: Settings) -> Settings:
    """The data set, its template and the learning rate are examples to replace.

    Raises:
        OomDoctorError: LLaMA-Factory has no such objective (exit 3).
    """
    objective = rung.config.objective
    if objective not in exports_data("llama-factory")["objectives"]:
        raise not_in("llama-factory", f"objective = {objective}", "use --to trl or --to axolotl")
    head: Settings = {"model_name_or_path": rung.model}
    if rung.revision:
        head["model_revision"] = rung.revision
    if rung.trust_remote_code:
        head["trust_remote_code"] = True
    return with_examples("llama-factory", rung, head | settings)


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


def _decide(given: PartialConfig, rung: RungKeys) -> RungKeys:
    """The scale of adapters is twice their rank."""
    return {} if "lora_alpha" in rung else {"lora_alpha": 2 * rung.get("lora_rank", 8)}


def _precision(
    given: PartialConfig, rung: RungKeys, said: Collection[str], weights: str, mixed: str
) -> tuple[str, str]:
    """Weights are loaded in 16 bits; those that are trained become fp32, unless pure."""
    if given.get("pure_bf16"):
        return "bfloat16", "none"
    if "method" not in rung:
        return weights, mixed
    if rung["method"] == "full" and mixed != "none" and rung.get("sharding") != "zero3":
        return "float32", mixed
    return (mixed if mixed != "none" else weights), mixed


def _adapters(given: PartialConfig, rung: RungKeys) -> str | None:
    """Its trainers cast nothing, so those for pairs differ from TRL's."""
    pure = given.get("pure_bf16") or given.get("first_version")
    pure = pure or (rung.get("sharding") == "zero3" and rung["method"] != "qlora")
    return None if pure and rung.get("modules_to_save") else "float32"


PROGRAM = Program(
    **facts("llama-factory"),
    names=LLAMA_FACTORY,
    prepare=_prepare,
    decide=_decide,
    precision=_precision,
    adapters=_adapters,
    complete=_complete,
)
