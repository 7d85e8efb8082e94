"""The configuration of `accelerate launch`, as `accelerate config` writes it.

Names are those of accelerate 1.15.
"""

from __future__ import annotations

from oomdoctor.records.configuration.config import TrainConfig, is_fsdp, is_zero
from oomdoctor.stacks.names.fsdp import rows
from oomdoctor.stacks.names.row import LEFT_OUT, Row, Settings, exports_data, table
from oomdoctor.stacks.names.techniques import backend_row
from oomdoctor.stacks.names.values import among, named_file, number, only_if, whole
from oomdoctor.stacks.programs.arguments import computes
from oomdoctor.stacks.programs.deepspeed import DEEPSPEED
from oomdoctor.stacks.programs.program import Program, facts
from oomdoctor.stacks.rung import StackRung

_PRECISIONS = {"bf16": "bfloat16", "fp16": "float16"}


def _mixed_word(config: TrainConfig) -> str:
    if config.fp8 != "none":
        return "fp8"
    for word, name in _PRECISIONS.items():
        if computes(config, name):
            return word
    return "no"


def _kind_word(config: TrainConfig) -> str:
    if is_fsdp(config):
        return "FSDP"
    if is_zero(config):
        return "DEEPSPEED"
    return "NO" if config.sharding == "none" else "MULTI_GPU"


def _zero_row(name: str, inner: str, *, none: object = LEFT_OUT) -> Row:
    """A row of DeepSpeed under this program's name, which may have a word for nothing."""
    row = DEEPSPEED.row(inner)
    assert row is not None
    write = row.write
    assert write is not None

    def written(config: TrainConfig) -> object:
        value = write(config)
        return none if value is LEFT_OUT else value

    full = Row(f"deepspeed_config.{name}", row.keys, row.read, written)
    return only_if(full, is_zero)


ACCELERATE = table(
    "accelerate",
    (
        Row("distributed_type", ("distributed",),
            among("accelerate kind", "a rung cannot run on {}"), _kind_word),
        Row("mixed_precision", ("mixed_bfloat16", "mixed_float16"),
            among("accelerate precision", "a rung has no mixed precision {}"), _mixed_word),
        backend_row("fp8_config.backend", ("AO", "TE")),
        number("num_processes", "world_size"),
        number("num_machines", "nodes",
               write=lambda config: max(1, -(-config.world_size // config.gpus_per_node))),
        Row("gradient_accumulation_steps", ("accumulation_steps",), whole("accumulation_steps")),
        Row("dynamo_config.dynamo_backend", ("compile",),
            among("accelerate compiler", "a rung compiles with inductor, not with {}"),
            lambda config: "INDUCTOR" if config.compile else LEFT_OUT, ("dynamo_backend",)),
        *rows("fsdp_config", "fsdp_", upper=True),
        named_file("deepspeed_config.deepspeed_config_file", "deepspeed_file_of_launcher"),
        _zero_row("zero_stage", "zero_optimization.stage"),
        _zero_row("gradient_accumulation_steps", "gradient_accumulation_steps"),
        _zero_row("offload_optimizer_device", "zero_optimization.offload_optimizer.device",
                  none="none"),
        _zero_row("offload_param_device", "zero_optimization.offload_param.device", none="none"),
    ),
)  # fmt: skip


def _complete(rung: StackRung, settings: Settings) -> Settings:
    """It says how many GPUs there are and how they share the training."""
    usual = exports_data("accelerate")
    settings = usual["head"] | settings | usual["settings"]
    if is_fsdp(rung.config):
        settings["fsdp_config"] |= usual["fsdp"]
        if rung.config.fsdp_version == 1:
            settings["fsdp_config"] |= usual["fsdp 1"]
    return settings


PROGRAM = Program(
    **facts("accelerate"),
    names=ACCELERATE,
    complete=_complete,
)
