"""A change of a rung as the lines to change in the user's files, or as keywords of calls."""

from __future__ import annotations

import shlex
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from oomdoctor.records.configuration.config import TrainConfig, changed_keys
from oomdoctor.records.configuration.keys import KEYS
from oomdoctor.records.facts.choices import FormatName
from oomdoctor.records.report.user_training import ChangedLine, TrainingFile, UserTraining
from oomdoctor.stacks.names.row import LEFT_OUT, Row, listed, nested, written
from oomdoctor.stacks.programs import BY_NAME, table_of
from oomdoctor.stacks.programs.arguments import ARGUMENTS
from oomdoctor.stacks.programs.trl import SFT_CONFIG
from oomdoctor.stacks.scripts.code import literal
from oomdoctor.stacks.writing.yaml_text import scalar

_ALLOCATOR = "PYTORCH_CUDA_ALLOC_CONF"
# Keys of the engine that shards, which one file sets and others inherit.
_ENGINE = listed(
    """
    zero_stage zero_offload_optimizer zero_offload_parameters bucket_elements reduce_dtype fsdp
    fsdp_strategy fsdp_reshard fsdp_offload fsdp_version distributed prefetch
    """
)
# What all programs say through other keys: the method by adapters and quantization, sizes by the
# steps of accumulation.
_BY_OTHERS = frozenset({"method", "micro_batch_size", "effective_batch_size"})


def changed_lines(training: UserTraining, after: TrainConfig) -> tuple[ChangedLine, ...]:
    """What to change in the files so that they say `after`.

    Settings that no file can hold, such as those of the allocator, are environment variables or
    options of the command line.
    """
    before = training.config
    lines: list[ChangedLine] = []
    keys: set[str] = set()
    if before.allocator != after.allocator:
        lines.append(ChangedLine(None, _ALLOCATOR, None, "expandable_segments:True", None))
    main = main_file(training)
    # The file that sets the engine.
    engine = next((line.file for line in training.said if line.key in _ENGINE), main.path)
    for file in training.files:
        table = table_of(file.path, file.format)
        for row in () if table is None else table.rows:
            line = _line(row, file, training, after)
            if line is None:
                continue
            home = engine if _ENGINE & set(row.keys) else main.path
            if line.before is not None or file.path == home:
                lines.append(line)
                keys |= set(row.keys)
    return tuple(lines) + _said_only(training, after, lines, keys)


def unsaid(training: UserTraining, after: TrainConfig) -> tuple[str, ...]:
    """The keys that `after` changes and that no setting of the files' programs says.

    Keys that are said elsewhere, such as by the launcher, and the program's own defaults do not
    count.
    """
    before = training.config
    tables = [table_of(file.path, file.format) for file in training.files]
    rows = [row for table in tables if table is not None for row in table.rows if row.write]
    defaults = {
        key: default for table in tables if table for key, default in table.defaults.items()
    }
    said = {line.key for line in training.said} | _BY_OTHERS
    changed = changed_keys(after, before).items()
    open_keys = {key: old for key, old in changed if key not in said and not KEYS[key].elsewhere}
    return tuple(
        key
        for key, old in open_keys.items()
        if _settings(rows, replace(after, **{key: old})) == _settings(rows, after)
        and defaults.get(key, old) != getattr(after, key)
    )


def _settings(rows: Sequence[Row], config: TrainConfig) -> list[object]:
    return [row.write(config) for row in rows if row.write is not None]


def main_file(training: UserTraining) -> TrainingFile:
    """The file that describes the training itself; the others launch or shard it."""
    mains = [file for file in training.files if not BY_NAME[file.format].is_launcher]
    return (mains or list(training.files))[0]


def _line(
    row: Row, file: TrainingFile, training: UserTraining, after: TrainConfig
) -> ChangedLine | None:
    if row.write is None or not row.keys or row.write(training.config) == row.write(after):
        return None
    then, names = row.write(after), (row.name, *row.aliases)
    value = None if then is LEFT_OUT else scalar(then)
    for said in training.said:
        if said.file == file.path and said.name in names:
            changed = ChangedLine(file.path, said.name, said.value, value, said.line)
            return None if said.value == "auto" else changed
    return None if then is LEFT_OUT else ChangedLine(file.path, row.name, None, value, None)


def _said_only(
    training: UserTraining, after: TrainConfig, lines: list[ChangedLine], keys: set[str]
) -> tuple[ChangedLine, ...]:
    """Changed keys under names that are only read, such as a script's own.

    A line that says one of `keys`, which another line says now, has to go. A name that is written
    too, and says the same as before, stays: LoRA and QLoRA are one type of LLaMA-Factory.
    """
    shown = {(line.file, line.name) for line in lines}
    for file in training.files:
        table = table_of(file.path, file.format)
        for row in () if table is None else table.rows:
            then = LEFT_OUT if row.write is None else row.write(after)
            if row.write is not None and row.write(training.config) == then is not LEFT_OUT:
                shown.add((file.path, row.name))
    texts = {
        key: None if key in keys else scalar(new)
        for key, new in changed_keys(training.config, after).items()
    }
    return tuple(
        ChangedLine(line.file, line.name, line.value, texts[line.key], line.line)
        for line in training.said
        if line.key in texts and (line.file, line.name) not in shown
    )


IN_FILES: tuple[FormatName, ...] = ("axolotl", "llama-factory", "torchtune")
"""Programs for which a change is lines of a file of settings, and no call."""
ON_COMMAND_LINES: tuple[FormatName, ...] = ("ms-swift",)
"""Programs whose settings are usually options of their command."""
_METHOD_IS_A_MODEL = "torchtune"  # adapters are another builder, which depends on the family
_CALLS = {"transformers": ("TrainingArguments", ARGUMENTS), "trl": ("SFTConfig", SFT_CONFIG)}
# The default optimizer is a change that may be said.
_BEFORE = TrainConfig(optimizer="adamw_torch", micro_batch_size=1)
_OTHERWISE = replace(_BEFORE, attention="eager", weights_dtype="float32")


def said_by_programs(changes: Mapping[str, Any]) -> dict[str, str]:
    """The calls, options and lines of a file that say these keys of a rung, by program.

    None for a program that cannot.
    """
    by_program: dict[str, str] = {}
    for library, (kind, table) in _CALLS.items():
        before = written(table, _BEFORE)
        after = written(table, replace(_BEFORE, **changes))
        new = {name: value for name, value in after.items() if before.get(name) != value}
        if new:
            words = [f"{name}={literal(value)}" for name, value in nested(new).items()]
            by_program[library] = f"{kind}({', '.join(words)})"
    for name in (*IN_FILES, *ON_COMMAND_LINES):
        training = UserTraining((TrainingFile("", name),), None, None, None, _OTHERWISE, (), (), ())
        lines = changed_lines(training, replace(_OTHERWISE, **changes))
        said = {line.name: str(line.after) for line in lines if line.file is not None}
        if said and not ("method" in changes and name == _METHOD_IS_A_MODEL):
            by_program[name] = settings_text(name, said)
    return by_program


def settings_text(program: str, settings: Mapping[str, str]) -> str:
    """Settings as the program takes them: options of its command, or lines of its file.

    A value may be a $name that is filled in later.
    """
    if program in ON_COMMAND_LINES:
        words = {n: v if v.startswith("$") else shlex.quote(v) for n, v in settings.items()}
        return " ".join(f"--{name} {word}" for name, word in words.items())
    return "\n".join(f"{name}: {value}" for name, value in settings.items())
