"""What a training script was found to say, the program that it is for, and its defaults."""

from __future__ import annotations

import ast
from collections.abc import Mapping
from dataclasses import dataclass, field

from oomdoctor.records.facts.choices import FormatName
from oomdoctor.stacks.reading.python_values import Place
from oomdoctor.stacks.reading.script_names import TRL_CLASSES, UNSLOTH_CLASSES

# With one of these, Unsloth does not quantize to 4 bits, which it does otherwise.
_NOT_IN_4_BITS = ("load_in_8bit", "load_in_16bit", "load_in_fp8", "full_finetuning")
LOADED_BY_TRL = "model loaded by TRL"
"""Among the classes of a script: a trainer gets the name of the model."""


NOT_READ = "an expression; scripts are read, never run"


@dataclass(frozen=True, slots=True)
class Unread:
    """What a script says and is not read: the text of it, its line, and why."""

    name: str
    source: str
    line: int
    reason: str = NOT_READ
    matters: bool = True


@dataclass(slots=True)
class Script:
    """What a script says: settings by their names in files, with their places.

    `calls` are the calls that take the settings of a kind: "arguments", "lora", "model",
    "quantization", "trainer" or "optimizer".
    """

    values: dict[str, object] = field(default_factory=dict)
    places: dict[str, Place] = field(default_factory=dict)
    unread: list[Unread] = field(default_factory=list)
    calls: dict[str, ast.Call] = field(default_factory=dict)
    classes: set[str] = field(default_factory=set)


def program_of(script: Script) -> FormatName:
    """The program by the classes that a script uses."""
    if script.classes & UNSLOTH_CLASSES:
        return "unsloth"
    if script.classes & TRL_CLASSES:
        return "trl"
    return "trainer" if "arguments" in script.calls else "pytorch"


def defaults_of(script: Script) -> Mapping[str, object]:
    """What classes take if a script is silent, where that differs from their command lines."""
    found: dict[str, object] = {"dtype": "auto", "use_peft": False}
    unsloth = bool(script.classes & UNSLOTH_CLASSES)
    if unsloth or "quantization" in script.calls:
        found["bnb_4bit_use_double_quant"] = unsloth
    if LOADED_BY_TRL in script.classes:
        found["dtype"] = "float32"
    if "lora" in script.calls:
        size = 16 if unsloth else 8
        found |= {"lora_r": size, "lora_alpha": size, "lora_dropout": 0.0}
    if not unsloth:
        return found
    if "lora" in script.calls:
        found["use_gradient_checkpointing"] = "unsloth"
    if "model" in script.calls and not any(script.values.get(name) for name in _NOT_IN_4_BITS):
        found["load_in_4bit"] = True
    return found
