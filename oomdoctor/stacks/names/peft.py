"""peft's `LoraConfig`, and bitsandbytes' `BitsAndBytesConfig` of transformers."""

from __future__ import annotations

from oomdoctor.records.config import TrainConfig
from oomdoctor.stacks.names.row import LEFT_OUT, NotTakenError, Read, Row, Write
from oomdoctor.stacks.names.values import (
    decimal,
    flag,
    names_in,
    only_if,
)
from oomdoctor.stacks.partial_config import PartialConfig, only


def adapted(config: TrainConfig) -> bool:
    """Whether a rung has an adapter."""
    return config.method != "full"


def in_four_bits(config: TrainConfig) -> bool:
    """Whether the base is stored in four bits."""
    return config.quantization == "nf4"


def share(value: object) -> PartialConfig:
    """The dropout before each adapter."""
    return {} if value is None else {"lora_dropout": decimal(value)}


def quant_type(value: object) -> PartialConfig:
    """The 4-bit type."""
    if str(value).lower() != "nf4":
        raise NotTakenError(f"a rung quantizes to nf4, not to {value}")
    return {}


def storage(value: object) -> PartialConfig:
    """The dtype that holds the packed weights."""
    if value is None:
        return {}
    word = str(value).strip().lower().removeprefix("torch.")
    if word not in ("uint8", "bfloat16", "float16", "float32"):
        raise NotTakenError(f"a rung cannot store packed weights as {value}")
    return {"quant_storage": word}


def bits(count: int) -> Read:
    """Reads `load_in_4bit` and `load_in_8bit`."""
    return lambda value: {} if value is None else only(f"bits_{count}", flag(value))


def trained_whole(value: object) -> PartialConfig:
    """Modules that are trained beside the adapters: a list, or names with commas between."""
    return {"modules_to_save": tuple(names_in(value))}


def variants(
    dora: str, rslora: str | None, saved: str | None, *, joined: bool = False
) -> tuple[Row, ...]:
    """The rows of DoRA, rsLoRA and modules trained whole, by a program's names.

    They are written only where they are used. `joined` writes modules as text with commas.
    """

    def modules(config: TrainConfig) -> object:
        found = config.modules_to_save
        return LEFT_OUT if not found else ",".join(found) if joined else list(found)

    def used(key: str) -> Write:
        return lambda config: True if getattr(config, key) else LEFT_OUT

    def on(key: str) -> Read:
        return lambda value: {} if value is None else only(key, flag(value))

    found = [Row(dora, ("use_dora",), on("use_dora"), used("use_dora"))]
    if rslora is not None:
        found.append(Row(rslora, ("use_rslora",), on("use_rslora"), used("use_rslora")))
    if saved is not None:
        found.append(Row(saved, ("modules_to_save",), trained_whole, modules))
    return tuple(found)


def upcast_adapters(name: str) -> Row:
    """peft's `autocast_adapter_dtype`: adapters are made float32, not left in 16 bits."""

    def kept(config: TrainConfig) -> object:
        wide = config.quantization != "none" or config.weights_dtype == "float32"
        return LEFT_OUT if wide or config.adapter_dtype != config.weights_dtype else False

    return Row(
        name,
        ("autocast_adapters",),
        lambda value: {} if value is None else {"autocast_adapters": flag(value)},
        kept,
    )


STORAGE = only_if(
    Row(
        "bnb_4bit_quant_storage",
        ("quant_storage",),
        storage,
        lambda config: LEFT_OUT if config.quant_storage == "uint8" else config.quant_storage,
    ),
    in_four_bits,
)
