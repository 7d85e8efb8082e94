"""peft's `LoraConfig`, and bitsandbytes' `BitsAndBytesConfig` of transformers."""

from __future__ import annotations

from oomdoctor.records.configuration.config import TrainConfig
from oomdoctor.stacks.names.row import LEFT_OUT, Row
from oomdoctor.stacks.names.values import decimal, given, names, number, only_if, switched


def adapted(config: TrainConfig) -> bool:
    """Whether a rung has an adapter."""
    return config.method != "full"


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
        found.append(Row(saved, ("modules_to_save",), names("modules_to_save"), modules))
    return tuple(found)


def upcast_adapters(name: str) -> tuple[Row]:
    """peft's `autocast_adapter_dtype`: adapters are made float32, not left in 16 bits."""

    def kept(config: TrainConfig) -> object:
        wide = config.quantization != "none" or config.weights_dtype == "float32"
        return LEFT_OUT if wide or config.adapter_dtype != config.weights_dtype else False

    return (Row(name, ("autocast_adapters",), switched("autocast_adapters"), kept),)


def lora_rows(rank: str, alpha: str, dropout: str, *older: str) -> tuple[Row, ...]:
    """The rows of an adapter's sizes, by a program's names; `older` ones of the rank are read."""
    key, read = "lora_dropout", given("lora_dropout", decimal)
    share = Row(dropout, (key,), read, lambda config: config.lora_dropout)
    rows = (number(rank, "lora_rank", *older), number(alpha, "lora_alpha"), share)
    return tuple(only_if(row, adapted) for row in rows)
