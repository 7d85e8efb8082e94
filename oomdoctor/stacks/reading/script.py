"""Reads the settings of a training script in Python, without running it.

Only what the text itself says is read: literal arguments, names that are bound to a literal once,
and the defaults of argparse options. Anything else is listed as not read.
"""

from __future__ import annotations

import ast
from collections.abc import Mapping
from dataclasses import replace

from oomdoctor.records.facts.choices import FormatName
from oomdoctor.records.report.user_training import Document
from oomdoctor.stacks.programs import PROGRAMS
from oomdoctor.stacks.programs.trl import CONFIGS
from oomdoctor.stacks.programs.unsloth import CLASSES as UNSLOTH_CLASSES
from oomdoctor.stacks.reading.merge import bad_config
from oomdoctor.stacks.reading.script_calls import LOADED_BY_TRL, Reading, Script

# With one of these, Unsloth does not quantize to 4 bits, which it does otherwise.
_NOT_IN_4_BITS = ("load_in_8bit", "load_in_16bit", "load_in_fp8", "full_finetuning")


def read_script(
    path: str, text: str, asked: FormatName | None = None, command: Document | None = None
) -> Document:
    """The settings of a script as a document. `command` has the options that it is started with.

    Raises:
        OomDoctorError: it is not Python, or it has no training settings (exit 2).
    """
    script = parse(path, text)
    if script.parsed is not None and "arguments" not in script.calls:
        program: FormatName = "trl" if script.parsed in CONFIGS else "trainer"
        if command is not None and CONFIGS.get(script.parsed, "default") == "default":
            return replace(command, asked=asked or program)
        raise bad_config(
            path,
            f"{script.parsed} comes from the command line of the script",
            f"pass the command: --from '{path} --per_device_train_batch_size 4 ...'"
            if CONFIGS.get(script.parsed, "default") == "default"
            else "write its arguments into args.yaml (such as per_device_train_batch_size: 4), and "
            f"pass --from {program}:args.yaml",
        )
    if command is not None and command.values:
        raise bad_config(
            path,
            "the options of the script's parser are not read",
            f"pass --from {path}, which reads the defaults of its options, and set those there",
        )
    if not script.values:
        raise bad_config(
            path,
            "no training settings in this script",
            "it needs TrainingArguments, SFTConfig or from_pretrained with literal values; or "
            "write its settings into a YAML file, and pass that",
        )
    lines = {name: place.line for name, place in script.places.items()}
    return Document(
        path,
        script.values,
        lines,
        asked or _program_of(script),
        _defaults_of(script),
        left_out=tuple(script.unread),
        calls=frozenset(script.classes),
    )


def parse(path: str, text: str) -> Script:
    """What a script says.

    Raises:
        OomDoctorError: it is not Python (exit 2).
    """
    try:
        tree = ast.parse(text)
    except (SyntaxError, ValueError, RecursionError) as error:
        line, why = getattr(error, "lineno", None), getattr(error, "msg", error)
        hint = "fix the file, or pass the settings as YAML or JSON"
        raise bad_config(path, f"not Python: {why}", hint, line) from None
    return Reading(path, text, tree).read()


def _program_of(script: Script) -> FormatName:
    """The program by the classes that a script uses: the last one that has some of them."""
    named = (program.name for program in reversed(PROGRAMS) if script.classes & program.classes)
    return next(named, "trainer" if "arguments" in script.calls else "pytorch")


def _defaults_of(script: Script) -> Mapping[str, object]:
    """What classes take if a script is silent, where that differs from their command lines."""
    defaults: dict[str, object] = {"dtype": "auto", "use_peft": False}
    unsloth = bool(script.classes & UNSLOTH_CLASSES)
    if unsloth or "quantization" in script.calls:
        defaults["bnb_4bit_use_double_quant"] = unsloth
    if LOADED_BY_TRL in script.classes:
        defaults["dtype"] = "float32"
    if "lora" in script.calls:
        size = 16 if unsloth else 8
        defaults |= {"lora_r": size, "lora_alpha": size, "lora_dropout": 0.0}
    if not unsloth:
        return defaults
    if "lora" in script.calls:
        defaults["use_gradient_checkpointing"] = "unsloth"
    if "model" in script.calls and not any(script.values.get(name) for name in _NOT_IN_4_BITS):
        defaults["load_in_4bit"] = True
    return defaults
