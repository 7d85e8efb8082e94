"""How GPUs share a training beside FSDP: accelerate's `ParallelismConfig`, and what is refused."""

from __future__ import annotations

from oomdoctor.records.configuration.config import TrainConfig
from oomdoctor.stacks.engines import mesh_settings
from oomdoctor.stacks.names.row import (
    LEFT_OUT,
    NotTakenError,
    Read,
    RefusedError,
    Row,
    Write,
    settings_data,
)
from oomdoctor.stacks.names.values import integer, is_auto, whole
from oomdoctor.stacks.partial_config import PartialConfig


def alone(kind: str) -> Read:
    """Reads the number of GPUs that share something; more than one is refused."""

    def read(value: object) -> PartialConfig:
        if value is not None and integer(value) > 1:
            raise _refused(kind)
        return {}

    return read


def plan_of_parts(value: object) -> PartialConfig:
    """transformers' `tp_plan`: which layers are cut in parts; auto is the model's own plan."""
    if not value:
        return {}
    if is_auto(value):
        return {"in_parts": True}
    raise NotTakenError("the model's own plan is taken")


def of_world(config: TrainConfig) -> object:
    """The number of GPUs that have parts of layers."""
    return config.world_size if config.sharding == "tensor_parallel" else LEFT_OUT


def _refused(kind: str) -> RefusedError:
    return RefusedError(f"oomdoctor does not plan {settings_data()['parallel'][kind]}")


def rows(prefix: str = "") -> tuple[Row, ...]:
    """The rows of `parallelism_config`; in accelerate's files, names begin with a `prefix`."""

    def written(name: str) -> Write:
        def write(config: TrainConfig) -> object:
            return mesh_settings(config).get(name, LEFT_OUT)

        return write

    keys = {
        "dp_replicate_size": "data_parallel_replicas",
        "dp_shard_size": "data_parallel_shards",
        "cp_size": "context_parallel_size",
        "sp_size": "ulysses_size",
    }
    head = f"parallelism_config.{prefix}"
    return (
        *(Row(f"{head}{name}", (key,), whole(key), written(name)) for name, key in keys.items()),
        Row(f"{head}tp_size", (), alone("tensor")),
    )


PARALLELISM = rows()
