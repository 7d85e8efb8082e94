"""DeepSpeed's configuration, as a file or inside another program's settings.

Names are those of DeepSpeed 0.19.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from oomdoctor.records.configuration.config import TrainConfig, is_zero
from oomdoctor.stacks.engines import zero_settings
from oomdoctor.stacks.names.row import (
    LEFT_OUT,
    NotTakenError,
    Read,
    Row,
    Settings,
    Table,
    Write,
    exports_data,
    table,
    words_of,
)
from oomdoctor.stacks.names.values import (
    among,
    integer,
    is_auto,
    nothing,
    number,
    optimizer_among,
    steps,
    switched,
    whole,
)
from oomdoctor.stacks.partial_config import PartialConfig, only
from oomdoctor.stacks.programs.program import Program, facts
from oomdoctor.stacks.rung import StackRung, not_in


def _stage(value: object) -> PartialConfig:
    stage = integer(value)
    if not 0 <= stage <= 3:
        raise ValueError(f"must be 0, 1, 2 or 3, not {value!r}")
    return {"zero_stage": stage}


def _device(key: str) -> Read:
    def read(value: object) -> PartialConfig:
        word = str(value or "none").strip().lower()
        if word == "nvme":
            raise NotTakenError("a rung offloads to host memory, not to a disk")
        return only(key, word == "cpu")

    return read


def _prefetch(value: object) -> PartialConfig:
    if value is None or is_auto(value):
        return {}
    if integer(value) == 0:
        return {"prefetch": "none"}
    raise NotTakenError("a rung prefetches DeepSpeed's default amount, or nothing")


def _precision(name: str) -> Write:
    return lambda config: (
        name == (config.weights_dtype if config.autocast_dtype == "none" else config.autocast_dtype)
    )


def _of_engine(name: str, keys: tuple[str, ...], read: Read, *aliases: str) -> Row:
    """A row that is written as the engine of a rung with ZeRO has it."""

    def write(config: TrainConfig) -> object:
        place: Any = zero_settings(config) if is_zero(config) else {}
        for part in name.split("."):
            place = place.get(part, LEFT_OUT) if isinstance(place, dict) else LEFT_OUT
        return place

    return Row(name, keys, read, write, aliases)


_ZERO = "zero_optimization."
DEEPSPEED = table(
    "deepspeed",
    (
        number("train_micro_batch_size_per_gpu", "micro_batch_size"),
        number("gradient_accumulation_steps", "accumulation_steps", write=steps),
        number("train_batch_size", "effective_batch_size"),
        Row("bf16.enabled", ("mixed_bfloat16",), switched("mixed_bfloat16", auto=True),
            _precision("bfloat16"), ("bfloat16.enabled",)),
        Row("fp16.enabled", ("mixed_float16",), switched("mixed_float16", auto=True),
            _precision("float16")),
        _of_engine(f"{_ZERO}stage", ("zero_stage",), _stage),
        _of_engine(f"{_ZERO}offload_optimizer.device", ("zero_offload_optimizer",),
                   _device("zero_offload_optimizer")),
        _of_engine(f"{_ZERO}offload_optimizer.pin_memory", (), nothing),
        _of_engine(f"{_ZERO}offload_param.device", ("zero_offload_parameters",),
                   _device("zero_offload_parameters")),
        _of_engine(f"{_ZERO}offload_param.pin_memory", (), nothing),
        _of_engine(f"{_ZERO}reduce_bucket_size", ("bucket_elements",), whole("bucket_elements")),
        _of_engine(f"{_ZERO}allgather_bucket_size", ("bucket_elements",), whole("bucket_elements")),
        _of_engine(f"{_ZERO}stage3_prefetch_bucket_size", ("prefetch",), _prefetch,
                   f"{_ZERO}prefetch_bucket_size"),
        _of_engine("communication_data_type", ("reduce_dtype",),
                   among("deepspeed reduction", "a rung cannot reduce gradients in {}", null={})),
        Row("optimizer.type", ("optimizer",), optimizer_among(words_of("deepspeed optimizer"))),
    ),
)  # fmt: skip


_SIZES = frozenset({"micro_batch_size", "accumulation_steps", "effective_batch_size"})


def under(head: str, table: Table, holds: Callable[[TrainConfig], bool]) -> tuple[Row, ...]:
    """The rows with each name below `head`, written for rungs of which `holds` is true.

    Sizes of a batch are "auto" there: the program around it fills them in.
    """

    def written(row: Row) -> Write | None:
        write = row.write
        if write is None:
            return None
        auto = bool(_SIZES & set(row.keys))
        return lambda config: LEFT_OUT if not holds(config) else "auto" if auto else write(config)

    return tuple(
        Row(
            f"{head}.{row.name}",
            row.keys,
            row.read,
            written(row),
            tuple(f"{head}.{alias}" for alias in row.aliases),
        )
        for row in table.rows
    )


def _complete(rung: StackRung, settings: Settings) -> Settings:
    """With what DeepSpeed needs for optimizers and clipping of the training around it.

    Raises:
        OomDoctorError: DeepSpeed does not shard the rung (exit 3).
    """
    if not is_zero(rung.config):
        what = f"sharding = {rung.config.sharding}"
        raise not_in("deepspeed", what, "choose a rung with zero1, zero2 or zero3")
    settings |= exports_data("deepspeed")["settings"]
    return settings


PROGRAM = Program(
    **facts("deepspeed"),
    names=DEEPSPEED,
    complete=_complete,
)
