"""Names of settings that no program of `--from` has: older releases, other scripts, our own rungs.

A script's own configuration file may have them, and a log may print them.
"""

from __future__ import annotations

from typing import get_args, get_type_hints

from oomdoctor.records.configuration.config import TrainConfig
from oomdoctor.stacks.names.row import Row, Table, words_of
from oomdoctor.stacks.names.scripts import LENGTH, SCRIPT
from oomdoctor.stacks.names.values import flag, if_on, number, words
from oomdoctor.stacks.programs.accelerate import ACCELERATE
from oomdoctor.stacks.programs.deepspeed import DEEPSPEED
from oomdoctor.stacks.programs.trl import TRL

# A name -> the name in the tables of TRL and of scripts that means the same.
_MEANS = words_of("sizes of scripts") | words_of("other names")
_KNOWN = TRL | LENGTH | SCRIPT


def _meaning(name: str, other: str) -> Row:
    row = _KNOWN.row(other)
    assert row is not None, other
    return Row(name, row.keys, row.read)


# What files of accelerate nest, such as fsdp_offload_params, may stand outside of its table, and
# so may DeepSpeed's tables of what is moved to the host.
_INNER = tuple(
    Row(inner, row.keys, row.read)
    for row in (*ACCELERATE.rows, *DEEPSPEED.rows)
    if (inner := row.name.partition(".")[2])
    and (row in ACCELERATE.rows or inner.startswith("offload_"))
)
# Keys of a rung whose values are words.
_RUNG = (
    *("method", "quantization", "weights_dtype", "autocast_dtype", "activation_checkpointing"),
    *("loss", "packing", "offload", "sharding"),
)
_CHOICES = {key: get_args(kind) for key, kind in get_type_hints(TrainConfig).items()}
OTHERS = Table(
    (
        *(_meaning(name, other) for name, other in _MEANS.items()),
        *_INNER,
        Row("use_flash_attention_2", ("attention",), if_on({"attention": "flash_attention_2"}, {})),
        Row("expandable_segments", ("allocator",), if_on({"allocator": "expandable_segments"}, {})),
        Row("cpu_offload", ("fsdp_offload",), lambda value: {"fsdp_offload": flag(value)}),
        number("world_size", "world_size", "nproc_per_node"),
        *(words(key, key, {one: one for one in _CHOICES[key]}) for key in _RUNG),
    )
)
