"""How a Trainer's script and TRL's say keys of a rung: as keywords of their arguments."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from oomdoctor.records.config import TrainConfig
from oomdoctor.stacks.names.row import nested, written
from oomdoctor.stacks.programs.arguments import ARGUMENTS
from oomdoctor.stacks.programs.trl import SFT_CONFIG
from oomdoctor.stacks.scripts.code import literal

_CALLS = {"transformers": ("TrainingArguments", ARGUMENTS), "trl": ("SFTConfig", SFT_CONFIG)}
# The default optimizer is a change that may be said.
_BEFORE = TrainConfig(optimizer="adamw_torch", micro_batch_size=1)


def said_in_calls(changes: Mapping[str, Any]) -> dict[str, str]:
    """The calls that say these keys of a rung, by library; none for one that cannot."""
    found: dict[str, str] = {}
    for library, (kind, table) in _CALLS.items():
        before = written(table, _BEFORE)
        after = written(table, replace(_BEFORE, **changes))
        new = {name: value for name, value in after.items() if before.get(name) != value}
        if new:
            words = [f"{name}={literal(value)}" for name, value in nested(new).items()]
            found[library] = f"{kind}({', '.join(words)})"
    return found
