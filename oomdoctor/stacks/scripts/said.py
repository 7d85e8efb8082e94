"""Which rungs a script can say: all of their keys, or they are refused."""

from __future__ import annotations

from oomdoctor.records.rung.keys import KEYS, settled
from oomdoctor.stacks.rung import StackRung, not_in

_WITH_ENGINE = ("trainer", "trl")  # their Trainer has the Accelerator that the conversion needs


def check_said(rung: StackRung, target: str) -> None:
    """Check that a script can say all of a rung. Scripts train a language model on text.

    Raises:
        OomDoctorError: the rung has a key or a task that scripts do not express (exit 3).
    """
    config = rung.config
    if rung.task != "causal-lm":
        raise not_in(target, f"the task {rung.task}", "exports train causal language models")
    if config.loss == "chunked" and target != "trl":
        raise not_in(target, "loss = chunked", "use --to trl")
    if config.fp8 == "transformer_engine" and target not in _WITH_ENGINE:
        raise not_in(target, "fp8 = transformer_engine", "use --to trainer or --to trl")
    config = settled(config)
    for key in KEYS.values():
        value = getattr(config, key.name)
        if value != key.default() and target not in key.scripts:
            scripts = " or ".join(f"--to {name}" for name in key.scripts)
            raise not_in(target, f"{key.name} = {value}", f"use {scripts}" if scripts else None)
