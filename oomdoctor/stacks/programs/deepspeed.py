"""DeepSpeed's configuration, as a file or inside another program's settings.

Names are those of DeepSpeed 0.19.
"""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from typing import Any

from oomdoctor.records.configuration.adapters import compute_dtype
from oomdoctor.records.configuration.config import TrainConfig, is_zero
from oomdoctor.stacks.engines import zero_settings
from oomdoctor.stacks.names.row import LEFT_OUT, NotTakenError, Row, Settings, exports_data
from oomdoctor.stacks.names.tables import table
from oomdoctor.stacks.names.values import AUTO, integer, is_auto, only_if, optimizer_among, word
from oomdoctor.stacks.partial_config import PartialConfig, only
from oomdoctor.stacks.programs.program import Program, facts
from oomdoctor.stacks.rung import StackRung, not_in


def _stage(value: object) -> PartialConfig:
    stage = integer(value)
    if not 0 <= stage <= 3:
        raise ValueError(f"must be 0, 1, 2 or 3, not {value!r}")
    return {"zero_stage": stage}


def _device(key: str, value: object) -> PartialConfig:
    device = word(value or "none")
    if device == "nvme":
        raise NotTakenError("oomdoctor offloads to host memory, not to a disk")
    return only(key, device == "cpu")


_optimizer_device = partial(_device, "zero_offload_optimizer")
_parameters_device = partial(_device, "zero_offload_parameters")


def _prefetch(value: object) -> PartialConfig:
    if value is None or is_auto(value):
        return {}
    if integer(value) == 0:
        return {"prefetch": "none"}
    raise NotTakenError("oomdoctor prefetches DeepSpeed's default amount, or nothing")


def _in(name: str, config: TrainConfig) -> bool:
    return name == compute_dtype(config)


_in_bfloat16, _in_float16 = partial(_in, "bfloat16"), partial(_in, "float16")
_optimizer = optimizer_among("deepspeed optimizer")


def _of_engine(row: Row) -> Row:
    """The row, written as the engine of a rung with ZeRO has it."""

    def write(config: TrainConfig) -> object:
        place: Any = zero_settings(config) if is_zero(config) else {}
        for part in row.name.split("."):
            place = place.get(part, LEFT_OUT) if isinstance(place, dict) else LEFT_OUT
        return place

    return replace(row, write=write)


_ROWS = table("deepspeed", globals())
_ENGINE = ("zero_optimization.", "communication_data_type")
DEEPSPEED = replace(
    _ROWS,
    rows=tuple(_of_engine(row) if row.name.startswith(_ENGINE) else row for row in _ROWS.rows),
)
_SIZES = frozenset({"micro_batch_size", "accumulation_steps", "effective_batch_size"})


def inside(head: str, row: Row) -> Row:
    """The row with its names below `head`, written for rungs with ZeRO.

    Sizes of a batch are "auto" there: the program around it fills them in.
    """
    aliases = tuple(f"{head}.{alias}" for alias in row.aliases)
    write = (lambda _: AUTO) if row.write and _SIZES & set(row.keys) else row.write
    below = Row(f"{head}.{row.name}", row.keys, row.read, write, aliases)
    return below if write is None else only_if(below, is_zero)


def _complete(rung: StackRung, settings: Settings) -> Settings:
    """With what DeepSpeed needs for optimizers and clipping of the training around it.

    Raises:
        OomDoctorError: DeepSpeed does not shard the rung (exit 3).
    """
    if not is_zero(rung.config):
        what = f"sharding = {rung.config.sharding}"
        raise not_in("deepspeed", what, "choose a configuration with zero1, zero2 or zero3")
    settings |= exports_data("deepspeed")["settings"]
    return settings


PROGRAM = Program(**facts("deepspeed"), names=DEEPSPEED, complete=_complete)
