"""DeepSpeed's part of a rung as its JSON file."""

from __future__ import annotations

import json

from oomdoctor.records.config import is_zero
from oomdoctor.stacks.rung import StackRung, not_in
from oomdoctor.stacks.writing.carried import with_carried
from oomdoctor.stacks.writing.lost import settings_of


def render(rung: StackRung) -> str:
    """The JSON file. JSON has no comments, so it holds the settings alone.

    Raises:
        OomDoctorError: DeepSpeed does not shard the rung (exit 3).
    """
    if not is_zero(rung.config):
        what = f"sharding = {rung.config.sharding}"
        raise not_in("deepspeed", what, "choose a rung with zero1, zero2 or zero3")
    settings = settings_of(rung.config, "deepspeed")
    settings["gradient_clipping"] = 1.0
    settings["zero_allow_untested_optimizer"] = True
    settings["zero_force_ds_cpu_optimizer"] = False
    settings = with_carried(settings, rung, "deepspeed")
    return json.dumps(settings, indent=2) + "\n"
