"""The configuration of `accelerate launch`, as `accelerate config` writes it.

Names are those of accelerate 1.15.
"""

from __future__ import annotations

from oomdoctor.records.configuration.config import TrainConfig, is_fsdp, is_zero
from oomdoctor.stacks.names import fsdp, parallel
from oomdoctor.stacks.names.row import LEFT_OUT, Row, Settings, exports_data
from oomdoctor.stacks.names.tables import table
from oomdoctor.stacks.names.techniques import computes
from oomdoctor.stacks.names.values import only_if
from oomdoctor.stacks.programs.deepspeed import DEEPSPEED
from oomdoctor.stacks.programs.program import Program, facts
from oomdoctor.stacks.rung import StackRung

_PRECISIONS = {"bf16": "bfloat16", "fp16": "float16"}


def _mixed_word(config: TrainConfig) -> str:
    if config.fp8 != "none":
        return "fp8"
    return next((word for word, name in _PRECISIONS.items() if computes(config, name)), "no")


def _kind_word(config: TrainConfig) -> str:
    if is_fsdp(config):
        return "FSDP"
    if is_zero(config):
        return "DEEPSPEED"
    return "NO" if config.sharding == "none" else "MULTI_GPU"


def _machines(config: TrainConfig) -> int:
    return max(1, -(-config.world_size // config.gpus_per_node))


def _zero_row(name: str, inner: str, *, none: object = LEFT_OUT) -> Row:
    """A row of DeepSpeed under this program's name, which may have a word for nothing."""
    row = DEEPSPEED.row(inner)
    assert row is not None and row.write is not None
    write = row.write

    def written(config: TrainConfig) -> object:
        value = write(config)
        return none if value is LEFT_OUT else value

    return only_if(Row(f"deepspeed_config.{name}", row.keys, row.read, written), is_zero)


_FSDP = fsdp.rows(of_launcher=True)
_PARALLELISM = parallel.rows("parallelism_config_")
_ZERO = (
    _zero_row("zero_stage", "zero_optimization.stage"),
    _zero_row("gradient_accumulation_steps", "gradient_accumulation_steps"),
    *(
        _zero_row(f"{name}_device", f"zero_optimization.{name}.device", none="none")
        for name in ("offload_optimizer", "offload_param")
    ),
)
ACCELERATE = table("accelerate", globals())


def _complete(rung: StackRung, settings: Settings) -> Settings:
    """It says how many GPUs there are and how they share the training."""
    usual = exports_data("accelerate")
    settings = usual["head"] | settings | usual["settings"]
    if is_fsdp(rung.config):
        settings["fsdp_config"] |= usual["fsdp"]
        if rung.config.fsdp_version == 1:
            settings["fsdp_config"] |= usual["fsdp 1"]
    return settings


PROGRAM = Program(**facts("accelerate"), names=ACCELERATE, complete=_complete)
