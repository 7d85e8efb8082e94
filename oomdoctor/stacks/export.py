"""Writes a rung for a program: as its configuration file, or as a whole script.

A file says where it is from, what it cannot hold, and its settings.
"""

from __future__ import annotations

import importlib
import json
import textwrap
from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from typing import Any

from oomdoctor.errors import OomDoctorError
from oomdoctor.records.configuration.adapters import without_usual_dtype
from oomdoctor.records.configuration.config import TrainConfig, is_zero, scored_tokens
from oomdoctor.records.configuration.keys import KEYS, settled
from oomdoctor.records.facts.choices import FormatName
from oomdoctor.records.report.user_training import Document
from oomdoctor.stacks.carried_settings import with_carried
from oomdoctor.stacks.names.row import Settings, nested, written
from oomdoctor.stacks.programs import BY_NAME
from oomdoctor.stacks.programs.program import Program
from oomdoctor.stacks.quoted import printable
from oomdoctor.stacks.reading.finish import Overrides, finished
from oomdoctor.stacks.reading.merge import draft_of
from oomdoctor.stacks.rung import StackRung
from oomdoctor.stacks.writing.yaml_text import scalar, yaml_text

_WIDTH = 98


def export(rung: StackRung, name: str) -> str:
    """The text of the rung for a program.

    Raises:
        OomDoctorError: the program cannot express the rung (exit 3).
    """
    program = BY_NAME[name]
    if not program.file.endswith(".py"):
        return _file_text(rung, program)
    writer = importlib.import_module(f"oomdoctor.stacks.scripts.{program.name}")
    return str(writer.render(rung))


def _file_text(rung: StackRung, program: Program) -> str:
    """The text of a program's configuration file, with comments above its settings in YAML."""
    settings = settings_of(rung.config, program.name)
    if program.complete is not None:
        settings = program.complete(rung, settings)
    settings = with_carried(settings, rung, program.name)
    if program.file.endswith(".json"):  # JSON has no comments
        return json.dumps(settings, indent=2) + "\n"
    missing = lost(rung.config, program.name, settings, rung.quant_method)
    notes = [f"{program.brand or program.name}: {rung.label}.", *rung.origin]
    command = program.command(rung.config)
    notes += [] if command is None else [f"Start it with: {command}"]
    notes += [f"Not in this file: {text}" for text in map(_said, missing)]
    head = "\n".join(
        line
        for text in notes
        for line in textwrap.wrap(printable(text), _WIDTH, subsequent_indent="  ")
    )
    return f"{textwrap.indent(head, '# ')}\n{yaml_text(settings)}"


def _said(value: Lost) -> str:
    if value.reason is not None:
        return f"{value.key} = {scalar(value.value)} ({value.reason})"
    return f"{value.key} = {scalar(value.value)}; this program has {scalar(value.read)} instead"


@dataclass(frozen=True, slots=True)
class Lost:
    """A key whose value a file does not hold. `read` is what it says instead."""

    key: str
    value: object
    read: object
    reason: str | None


def lost(
    config: TrainConfig,
    program: FormatName,
    settings: Mapping[str, object],
    quant_method: str | None = None,
) -> list[Lost]:
    """The keys that a program would read otherwise from `settings`, its nested file.

    `quant_method` is what the model's config.json says about its checkpoint, which programs read.
    """
    own = {} if quant_method is None else {"quantization_config": {"quant_method": quant_method}}
    document = Document("", settings, asked=program)
    overrides = Overrides(gpus=config.world_size if config.world_size > 1 else None)
    try:
        read_back = finished(draft_of([document]), lambda: own, overrides).config
    except OomDoctorError as error:
        return [Lost("sharding", config.sharding, "none", error.message)]
    wanted, read_back = comparable(config), comparable(read_back)
    held = BY_NAME[program].held
    return [
        Lost(name, getattr(wanted, name), getattr(read_back, name), KEYS[name].elsewhere)
        for name in (field.name for field in fields(TrainConfig))
        if getattr(wanted, name) != getattr(read_back, name) and (held is None or name in held)
    ]


def settings_of(config: TrainConfig, program: FormatName) -> Settings:
    """The settings of a rung as a program, which has a table of names, nests them."""
    table = BY_NAME[program].names
    assert table is not None, program
    return nested(written(table, config))


def comparable(config: TrainConfig) -> TrainConfig:
    """The configuration without values that mean nothing in the file of a program."""
    settings: dict[str, Any] = {}
    if config.sharding != "hybrid":
        settings["gpus_per_node"] = KEYS["gpus_per_node"].default()  # the host's, not the file's
    if config.objective in ("dpo", "grpo"):
        settings["completion_length"] = scored_tokens(config)  # 0 is half of the sequence
    if is_zero(config) and config.autocast_dtype != "none":
        # DeepSpeed makes the weights 16-bit itself.
        settings |= {"weights_dtype": config.autocast_dtype, "autocast_dtype": "none"}
    return without_usual_dtype(replace(settled(config), **settings))
