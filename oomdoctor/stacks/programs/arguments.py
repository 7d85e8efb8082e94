"""transformers: `TrainingArguments`, and what scripts pass to `from_pretrained`.

Names are those of transformers 5.23, with the older ones that it or its predecessors accept.
"""

from __future__ import annotations

from oomdoctor.records.configuration.config import TrainConfig
from oomdoctor.stacks.engines import engine_settings
from oomdoctor.stacks.names.row import LEFT_OUT, NotTakenError
from oomdoctor.stacks.names.tables import table
from oomdoctor.stacks.names.values import flag
from oomdoctor.stacks.partial_config import PartialConfig
from oomdoctor.stacks.programs.deepspeed import DEEPSPEED, inside


def _not_reentrant(value: object) -> PartialConfig:
    if value is None or not flag(value):
        return {}
    raise NotTakenError("oomdoctor checkpoints without re-entering autograd")


def _bucket_of(config: TrainConfig) -> object:
    gradient = 4 if config.weights_dtype == "float32" else 2
    return engine_settings(config, gradient).get("ddp_bucket_cap_mb", LEFT_OUT)


IN_DEEPSPEED = tuple(inside("deepspeed", row) for row in DEEPSPEED.rows)
FROM_PRETRAINED = table("from_pretrained")
ARGUMENTS = table("training_arguments", globals())
