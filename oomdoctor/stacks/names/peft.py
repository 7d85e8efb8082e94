"""peft's `LoraConfig`, and bitsandbytes' `BitsAndBytesConfig` of transformers."""

from __future__ import annotations

from oomdoctor.records.configuration.config import TrainConfig
from oomdoctor.stacks.names.row import LEFT_OUT, NotTakenError, Row
from oomdoctor.stacks.names.values import decimal, given, names_in, number, only_if, switched
from oomdoctor.stacks.partial_config import PartialConfig


def adapted(config: TrainConfig) -> bool:
    """Whether a rung has an adapter."""
    return config.method != "full"


def in_four_bits(config: TrainConfig) -> bool:
    """Whether the base is stored in four bits."""
    return config.quantization == "nf4"


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
    dora: str, rslora: str | None = None, saved: str | None = None, *, joined: bool = False
) -> tuple[Row, ...]:
    """The rows of DoRA, rsLoRA and modules trained whole, by a program's names.

    They are written only where they are used. `joined` writes modules as text with commas.
    """

    def modules(config: TrainConfig) -> object:
        found = config.modules_to_save
        return LEFT_OUT if not found else ",".join(found) if joined else list(found)

    def row(name: str, key: str) -> Row:
        return Row(name, (key,), switched(key), lambda config: getattr(config, key) or LEFT_OUT)

    found = [row(dora, "use_dora")]
    if rslora is not None:
        found.append(row(rslora, "use_rslora"))
    if saved is not None:
        found.append(Row(saved, ("modules_to_save",), trained_whole, modules))
    return tuple(found)


def upcast_adapters(name: str) -> tuple[Row]:
    """peft's `autocast_adapter_dtype`: adapters are made float32, not left in 16 bits."""

    def kept(config: TrainConfig) -> object:
        wide = config.quantization != "none" or config.weights_dtype == "float32"
        return LEFT_OUT if wide or config.adapter_dtype != config.weights_dtype else False

    return (Row(name, ("autocast_adapters",), switched("autocast_adapters"), kept),)


def lora_rows(rank: str, alpha: str, dropout: str, *older: str) -> tuple[Row, ...]:
    """The rows of an adapter's sizes, by a program's names; `older` ones of the rank are read."""
    share = Row(
        dropout, ("lora_dropout",), given("lora_dropout", decimal), lambda c: c.lora_dropout
    )
    rows = (number(rank, "lora_rank", *older), number(alpha, "lora_alpha"), share)
    return tuple(only_if(row, adapted) for row in rows)
