"""transformers: `TrainingArguments`, and what training scripts in Python say beside them.

Names are those of transformers 5.23, with the older ones that it or its predecessors accept. What
`reading/script.py` finds in calls, it gives the names of `SCRIPT`.
"""

from __future__ import annotations

from oomdoctor.records.configuration.config import TrainConfig
from oomdoctor.stacks.engines import engine_settings
from oomdoctor.stacks.names.row import LEFT_OUT, NotTakenError, words_of
from oomdoctor.stacks.names.tables import table
from oomdoctor.stacks.names.values import flag, names_in, targets
from oomdoctor.stacks.partial_config import PartialConfig
from oomdoctor.stacks.programs.deepspeed import DEEPSPEED, inside


def _not_reentrant(value: object) -> PartialConfig:
    if value is None or not flag(value):
        return {}
    raise NotTakenError("oomdoctor checkpoints without re-entering autograd")


def _bucket_of(config: TrainConfig) -> object:
    gradient = 4 if config.weights_dtype == "float32" else 2
    return engine_settings(config, gradient).get("ddp_bucket_cap_mb", LEFT_OUT)


def _allocator(value: object) -> PartialConfig:
    if "expandable_segments:true" in str(value).replace(" ", "").lower():
        return {"allocator": "expandable_segments"}
    raise NotTakenError("oomdoctor has only expandable_segments")


def _targets(value: object) -> PartialConfig:
    """The modules with adapters; our own scripts find those of attention by a function."""
    return {"lora_targets": "attention"} if value == ["attention"] else targets(value)


def _saved(value: object) -> PartialConfig:
    return {"modules_to_save": tuple(names_in(value))} if value else {}


IN_DEEPSPEED = tuple(inside("deepspeed", row) for row in DEEPSPEED.rows)
FROM_PRETRAINED = table("from_pretrained")
ARGUMENTS = table("training_arguments", globals())
LENGTH = table("length")
SCRIPT = LENGTH | table("scripts", globals())
# Names that scripts give to the sizes of a training, in any case.
SIZES = words_of("sizes of scripts")
# Those that the arguments of a trainer may leave to the data.
OUTSIDE_ARGUMENTS = frozenset({"max_length", "completion_length"})
