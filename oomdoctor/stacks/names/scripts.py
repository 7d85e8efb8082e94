"""What training scripts in Python say beside the settings of their program.

`reading/script.py` gives these names to what it finds in calls.
"""

from __future__ import annotations

from oomdoctor.stacks.names.row import NotTakenError, words_of
from oomdoctor.stacks.names.tables import table
from oomdoctor.stacks.names.values import names_in, targets
from oomdoctor.stacks.partial_config import PartialConfig


def _allocator(value: object) -> PartialConfig:
    if "expandable_segments:true" in str(value).replace(" ", "").lower():
        return {"allocator": "expandable_segments"}
    raise NotTakenError("oomdoctor has only expandable_segments")


def _targets(value: object) -> PartialConfig:
    """The modules with adapters; our own scripts find those of attention by a function."""
    return {"lora_targets": "attention"} if value == ["attention"] else targets(value)


def _saved(value: object) -> PartialConfig:
    return {"modules_to_save": tuple(names_in(value))} if value else {}


LENGTH = table("length")
SCRIPT = LENGTH | table("scripts", globals())

# Names that scripts give to the sizes of a training, in any case.
SIZES = words_of("sizes of scripts")
# Those that the arguments of a trainer may leave to the data.
OUTSIDE_ARGUMENTS = frozenset({"max_length", "completion_length"})
