"""Unsloth: scripts with TRL's trainers, whose model it loads and patches."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import replace

from oomdoctor.stacks.partial_config import PartialConfig, RungKeys
from oomdoctor.stacks.programs.arguments import SCRIPT
from oomdoctor.stacks.programs.program import Program, facts
from oomdoctor.stacks.programs.trl import TRL

CLASSES = frozenset({"FastLanguageModel", "FastModel", "FastVisionModel"})


def _prepare(given: PartialConfig, said: Collection[str]) -> None:
    given["library"] = "unsloth"


def _decide(given: PartialConfig, rung: RungKeys) -> RungKeys:
    """It makes a micro-batch of all completions of a prompt, if it is not several of them."""
    count = rung.get("num_generations", 8)
    size = rung.get("micro_batch_size", 1) * given.get("accumulation_steps", 1)
    split = rung.get("objective") == "grpo" and size % count
    return {"micro_batch_size": count} if split else {}


_TRL = TRL | SCRIPT
# `get_peft_model` adapts all linear layers, where peft itself takes a few.
_SCRIPT = replace(
    _TRL,
    defaults={**_TRL.defaults, "lora_targets": "all-linear"},
    source=_TRL.source.replace("TRL", "Unsloth and TRL"),
)
PROGRAM = Program(
    **facts("unsloth"), script=_SCRIPT, classes=CLASSES, prepare=_prepare, decide=_decide
)
