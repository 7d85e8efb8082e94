"""torchtune's configuration: what its fine-tuning recipes read.

Names are those of torchtune 0.6.1. Its own models are built; the doctor simulates the same
architecture in transformers.
"""

from __future__ import annotations

import re
from collections.abc import Collection

from oomdoctor.records.configuration.config import TrainConfig
from oomdoctor.stacks.names.row import (
    LEFT_OUT,
    NotTakenError,
    Settings,
    exports_data,
    published_data,
    words_of,
)
from oomdoctor.stacks.names.tables import table
from oomdoctor.stacks.names.values import optimizer
from oomdoctor.stacks.partial_config import PartialConfig
from oomdoctor.stacks.programs.program import OF_WEIGHTS, Program, facts
from oomdoctor.stacks.rung import StackRung, learning_rate, not_in

_HEAD = "torchtune.models."
_BUILDER = re.compile(r"torchtune\.models\.(\w+)\.(q?lora_)?(\w+)")
_OPTIMIZERS = words_of("torchtune optimizer")
_CHUNKED = "oomdoctor has the usual loss; torchtune's, in chunks, needs less memory"


def builder_of(config: TrainConfig, model: str) -> str | None:
    """The name of the function that builds a model for a rung; None if torchtune has none.

    A builder is an architecture, so that of an Instruct model also builds its base model.
    """
    builders = published_data()["torchtune models"].items()
    alike = (word for same in (str.lower, _architecture) for word, builder in builders
             if same(builder) == same(model))  # fmt: skip
    room, _, name = next(alike, "").partition(".")
    prefix = "" if config.method == "full" else f"{config.method}_"
    return f"{_HEAD}{room}.{prefix}{name}" if room else None


def _architecture(model: str) -> str:
    """The name of a model without what says how it was trained, and without Meta's older prefix."""
    return model.lower().removesuffix("-instruct").replace("/meta-llama-", "/llama-")


def _builder(value: object) -> PartialConfig:
    match = _BUILDER.fullmatch(str(value))
    if match is None:
        raise NotTakenError("oomdoctor does not know this builder; name MODEL on the command line")
    room, prefix, name = match.groups(default="")
    method = prefix.rstrip("_") or "full"
    settings: PartialConfig = {"method": method, "bits_4": method == "qlora"}
    model = published_data()["torchtune models"].get(f"{room}.{name}")
    return settings if model is None else settings | {"model": model}


_ATTENTION = ("q_proj", "k_proj", "v_proj", "output_proj")
_MLP = ("gate_proj", "up_proj", "down_proj")


def lora_targets(modules: tuple[str, ...], *, mlp: bool) -> str | tuple[str, ...]:
    """The modules of torchtune under their names in transformers."""
    if mlp and set(modules) == set(_ATTENTION):
        return "all-linear"
    names = tuple("o_proj" if module == "output_proj" else module for module in modules)
    return (*names, *(_MLP if mlp else ()))


def _modules(config: TrainConfig) -> list[str]:
    if isinstance(config.lora_targets, str):
        return list(_ATTENTION)
    names = ["output_proj" if module == "o_proj" else module for module in config.lora_targets]
    return [module for module in names if module in _ATTENTION]


def _on_mlp(config: TrainConfig) -> bool:
    return config.lora_targets == "all-linear" or set(_MLP) <= set(config.lora_targets)


def _optimizer(value: object) -> PartialConfig:
    named = _OPTIMIZERS.get(str(value))
    return {"optimizer": named or optimizer(str(value).rpartition(".")[2])}


def _component(config: TrainConfig) -> object:
    spoken = {name: word for word, name in _OPTIMIZERS.items()} | {
        "adamw_torch_fused": "torch.optim.AdamW",
        "adamw_8bit": "bitsandbytes.optim.AdamW8bit",
    }
    return spoken.get(config.optimizer, LEFT_OUT)


def _loss(value: object) -> PartialConfig:
    """The loss, which tells the recipe."""
    word = str(value).rpartition(".")[2]
    if word.startswith(("DPO", "RSO", "SimPO")):
        return {"objective": "dpo"}
    if "CrossEntropy" in word or word.startswith("CE"):
        raise NotTakenError(_CHUNKED, matters="torch.nn" not in str(value))
    raise NotTakenError(f"oomdoctor has no step with {word}; a plain step is taken")


TORCHTUNE = table("torchtune", globals())


def _complete(rung: StackRung, settings: Settings) -> Settings:
    """Paths, data set and learning rate are examples to replace.

    Raises:
        OomDoctorError: torchtune has no such model, optimizer or objective (exit 3).
    """
    config = rung.config
    if config.objective != "default":
        raise not_in("torchtune", f"objective = {config.objective}", "use --to trl or --to axolotl")
    builder = builder_of(config, rung.model)
    if builder is None:
        raise not_in("torchtune", f"the model {rung.model}", "use --to trl or --to axolotl")
    if "_component_" not in settings.get("optimizer", {}):
        raise not_in("torchtune", f"the optimizer {config.optimizer}")
    folder = f"/tmp/{rung.model.rpartition('/')[2]}"
    examples = exports_data("torchtune")
    tokenizer = examples["tokenizers"][builder.split(".")[2]]  # by the room of the builder
    settings["model"] = {"_component_": builder} | settings.get("model", {})
    settings["tokenizer"] = (
        {"_component_": f"torchtune.models.{tokenizer['component']}"}
        | {name: f"{folder}/{file}" for name, file in tokenizer["files"].items()}
        | settings.get("tokenizer", {})
    )
    settings["optimizer"] |= {"lr": learning_rate(config)}
    settings["dataset"] = {"_component_": "torchtune.datasets.alpaca_dataset"} | settings["dataset"]
    settings |= examples["settings"]
    settings["checkpointer"] |= {"checkpoint_dir": folder, "model_type": tokenizer["model_type"]}
    return settings


def _prepare(given: PartialConfig, said: Collection[str]) -> None:
    """What torchtune says in two settings each: its optimizer, and where adapters go."""
    if given.get("tune_fused") and given.get("optimizer") == "adamw_torch":
        given["optimizer"] = "adamw_torch_fused"
    if "tune_modules" in given:
        mlp = given.get("tune_mlp", False)
        given["lora_targets"] = lora_targets(given["tune_modules"], mlp=mlp)


PROGRAM = Program(
    **facts("torchtune"),
    names=TORCHTUNE,
    prepare=_prepare,
    adapters=lambda given, rung: OF_WEIGHTS,
    complete=_complete,
)
