"""DeepSpeed's configuration, as a file or inside another program's settings.

Names are those of DeepSpeed 0.19.
"""

from __future__ import annotations

from collections.abc import Callable

from oomdoctor.records.config import TrainConfig, is_zero
from oomdoctor.stacks.names.row import (
    LEFT_OUT,
    NotTakenError,
    Read,
    Row,
    Settings,
    Table,
    Write,
    listed,
    table,
)
from oomdoctor.stacks.names.values import flag, integer, is_auto, number, optimizer
from oomdoctor.stacks.partial_config import PartialConfig, only
from oomdoctor.stacks.programs.program import Program
from oomdoctor.stacks.rung import StackRung, not_in

_OPTIMIZERS = {
    "adam": "adamw_torch",
    "adamw": "adamw_torch",
    "adagrad": "adagrad",
    "lion": "lion_32bit",
}
_REDUCED = {"fp32": "float32", "bf16": "bfloat16", "bfp16": "bfloat16"}
_STAGES = {"zero1": 1, "zero2": 2, "zero3": 3}


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


def _enabled(key: str) -> Read:
    return lambda value: {} if value is None or is_auto(value) else only(key, flag(value))


def _bucket(value: object) -> PartialConfig:
    if value is None or is_auto(value):
        return {}
    return {"bucket_elements": integer(value)}


def _prefetch(value: object) -> PartialConfig:
    if value is None or is_auto(value):
        return {}
    if integer(value) == 0:
        return {"prefetch": "none"}
    raise NotTakenError("a rung prefetches DeepSpeed's default amount, or nothing")


def _reduced(value: object) -> PartialConfig:
    if value is None:
        return {}
    word = str(value).strip().lower()
    if word not in _REDUCED:
        raise NotTakenError(f"a rung cannot reduce gradients in {value}")
    return {"reduce_dtype": _REDUCED[word]}


def _optimizer(value: object) -> PartialConfig:
    word = str(value).strip().lower()
    return {"optimizer": _OPTIMIZERS[word] if word in _OPTIMIZERS else optimizer(word)}


def _zero(write: Write) -> Write:
    return lambda config: write(config) if is_zero(config) else LEFT_OUT


def _precision(name: str) -> Write:
    return lambda config: (
        name == (config.weights_dtype if config.autocast_dtype == "none" else config.autocast_dtype)
    )


def offloads(config: TrainConfig, what: str) -> object:
    """The device that states or weights are offloaded to."""
    moved = ("optimizer", "parameters") if what == "optimizer" else ("parameters",)
    return "cpu" if config.offload in moved else LEFT_OUT


def reduce_word(config: TrainConfig) -> object:
    """The dtype of reductions, as DeepSpeed names it."""
    words = {"float32": "fp32", "bfloat16": "bf16"}
    return words.get(config.reduce_dtype, LEFT_OUT)


def _buckets(config: TrainConfig) -> object:
    return config.bucket_elements or LEFT_OUT


def _no_prefetch(config: TrainConfig) -> object:
    return 0 if config.prefetch == "none" and config.sharding == "zero3" else LEFT_OUT


def _pinned(what: str) -> Write:
    return lambda config: LEFT_OUT if offloads(config, what) is LEFT_OUT else True


DEEPSPEED = table(
    "deepspeed",
    (
        Row(
            "train_micro_batch_size_per_gpu",
            ("micro_batch_size",),
            number("", "micro_batch_size").read,
            lambda config: config.micro_batch_size,
        ),
        Row(
            "gradient_accumulation_steps",
            ("accumulation_steps",),
            number("", "accumulation_steps").read,
            lambda config: config.accumulation_steps(),
        ),
        Row("train_batch_size", ("effective_batch_size",),
            number("", "effective_batch_size").read,
            lambda config: config.effective_batch_size),
        Row("bf16.enabled", ("mixed_bfloat16",), _enabled("mixed_bfloat16"),
            _precision("bfloat16"), ("bfloat16.enabled",)),
        Row("fp16.enabled", ("mixed_float16",), _enabled("mixed_float16"),
            _precision("float16")),
        Row("zero_optimization.stage", ("zero_stage",), _stage,
            _zero(lambda config: _STAGES[config.sharding])),
        Row("zero_optimization.offload_optimizer.device", ("zero_offload_optimizer",),
            _device("zero_offload_optimizer"), _zero(lambda c: offloads(c, "optimizer"))),
        Row("zero_optimization.offload_optimizer.pin_memory", (), lambda _: {},
            _zero(_pinned("optimizer"))),
        Row("zero_optimization.offload_param.device", ("zero_offload_parameters",),
            _device("zero_offload_parameters"), _zero(lambda c: offloads(c, "parameters"))),
        Row("zero_optimization.offload_param.pin_memory", (), lambda _: {},
            _zero(_pinned("parameters"))),
        Row("zero_optimization.reduce_bucket_size", ("bucket_elements",), _bucket,
            _zero(_buckets)),
        Row("zero_optimization.allgather_bucket_size", ("bucket_elements",), _bucket,
            _zero(_buckets)),
        Row("zero_optimization.stage3_prefetch_bucket_size", ("prefetch",), _prefetch,
            _zero(_no_prefetch), ("zero_optimization.prefetch_bucket_size",)),
        Row("communication_data_type", ("reduce_dtype",), _reduced, _zero(reduce_word)),
        Row("optimizer.type", ("optimizer",), _optimizer),
    ),
)  # fmt: skip


def under(head: str, table: Table, holds: Callable[[TrainConfig], bool]) -> tuple[Row, ...]:
    """The rows with each name below `head`, written for rungs of which `holds` is true.

    Sizes of a batch are "auto" there: the program around it fills them in.
    """

    def written(row: Row) -> Write | None:
        write = row.write
        if write is None:
            return None
        auto = row.keys and row.keys[0] in (
            "micro_batch_size",
            "accumulation_steps",
            "effective_batch_size",
        )
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
    return settings | {
        "gradient_clipping": 1.0,
        "zero_allow_untested_optimizer": True,
        "zero_force_ds_cpu_optimizer": False,
    }


PROGRAM = Program(
    "deepspeed",
    title="DeepSpeed configuration",
    package="deepspeed",
    version="0.19.8",
    file="ds.json",
    brand="DeepSpeed",
    reads="DeepSpeed's JSON",
    writes="DeepSpeed's JSON file, for rungs with ZeRO",
    names=DEEPSPEED,
    marks=listed(
        """
        zero_optimization train_micro_batch_size_per_gpu train_batch_size zero_optimization.stage
        """
    ),
    complete=_complete,
    beside={"max_grad_norm": "gradient_clipping"},
    held=listed(
        """
        sharding offload bucket_elements reduce_dtype prefetch micro_batch_size
        effective_batch_size world_size
        """
    ),
)
