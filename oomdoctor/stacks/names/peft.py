"""peft's `LoraConfig`, and bitsandbytes' `BitsAndBytesConfig` of transformers."""

from __future__ import annotations

from oomdoctor.records.configuration.config import TrainConfig
from oomdoctor.stacks.names.row import LEFT_OUT, NotTakenError, Row
from oomdoctor.stacks.names.values import (
    among,
    decimal,
    given,
    names_in,
    number,
    on_if,
    only_if,
    switched,
)
from oomdoctor.stacks.partial_config import PartialConfig


def adapted(config: TrainConfig) -> bool:
    """Whether a rung has an adapter."""
    return config.method != "full"


def in_four_bits(config: TrainConfig) -> bool:
    """Whether the base is stored in four bits."""
    return config.quantization == "nf4"


share = given("lora_dropout", decimal)
quant_type = among("quantization type", "a rung quantizes to nf4, not to {}")


def storage(value: object) -> PartialConfig:
    """The dtype that holds the packed weights."""
    if value is None:
        return {}
    word = str(value).strip().lower().removeprefix("torch.")
    if word not in ("uint8", "bfloat16", "float16", "float32"):
        raise NotTakenError(f"a rung cannot store packed weights as {value}")
    return {"quant_storage": word}


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

    def row(name: str, key: str) -> Row:
        return Row(name, (key,), switched(key), on_if(lambda config: bool(getattr(config, key))))

    found = [row(dora, "use_dora")]
    if rslora is not None:
        found.append(row(rslora, "use_rslora"))
    if saved is not None:
        found.append(Row(saved, ("modules_to_save",), trained_whole, modules))
    return tuple(found)


def upcast_adapters(name: str) -> Row:
    """peft's `autocast_adapter_dtype`: adapters are made float32, not left in 16 bits."""

    def kept(config: TrainConfig) -> object:
        wide = config.quantization != "none" or config.weights_dtype == "float32"
        return LEFT_OUT if wide or config.adapter_dtype != config.weights_dtype else False

    return Row(name, ("autocast_adapters",), switched("autocast_adapters"), kept)


def lora_rows(rank: str, alpha: str, dropout: str, *older: str) -> tuple[Row, ...]:
    """The rows of an adapter's sizes, by a program's names; `older` ones of the rank are read."""
    return (
        only_if(number(rank, "lora_rank", *older), adapted),
        only_if(number(alpha, "lora_alpha"), adapted),
        only_if(Row(dropout, ("lora_dropout",), share, lambda c: c.lora_dropout), adapted),
    )


BITS = (
    Row("load_in_4bit", ("bits_4",), switched("bits_4"), on_if(in_four_bits)),
    Row(
        "load_in_8bit",
        ("bits_8",),
        switched("bits_8"),
        on_if(lambda config: config.quantization == "int8"),
    ),
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
