"""How a change of a training is written into the user's files: the one place that says so.

`written` says it: a line of a file, a literal or a keyword of a script, or code to paste for what
a script makes as objects. `patched` makes the change in the text of a file, and leaves every other
character as it is.
"""

from __future__ import annotations

import json
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import PurePath
from typing import Any

from oomdoctor.records.configuration.config import TrainConfig
from oomdoctor.records.report.user_training import (
    COMMAND_LINE,
    OF_SHELLS,
    AddedCode,
    ChangedLine,
    UserTraining,
)
from oomdoctor.stacks.names.row import table_at
from oomdoctor.stacks.programs import PROGRAMS
from oomdoctor.stacks.reading.script import parse
from oomdoctor.stacks.writing.changed_lines import changed_lines, unsaid
from oomdoctor.stacks.writing.python_patch import Edit, changed_script
from oomdoctor.stacks.writing.script_code import code_of
from oomdoctor.stacks.writing.yaml_text import patched_yaml, without


class NotPatchedError(ValueError):
    """A change that cannot be written into this file; the message is the reason."""


@dataclass(frozen=True, slots=True)
class Written:
    """A change of a training in its files: lines to change, and code to paste into a script."""

    lines: tuple[ChangedLine, ...]
    code: tuple[AddedCode, ...] = ()


def written(training: UserTraining, after: TrainConfig, texts: Mapping[str, str]) -> Written:
    """What to change in the files so that they say `after`. `texts` are those of scripts.

    Raises:
        NotPatchedError: the files cannot say it.
    """
    if keys := unsaid(training, after):
        raise NotPatchedError(f"the files have no setting for {', '.join(keys)}")
    lines: list[ChangedLine] = []
    code: tuple[AddedCode, ...] = ()
    everything = changed_lines(training, after)
    for file in dict.fromkeys(line.file for line in everything):
        own = [line for line in everything if line.file == file]
        if file is None or file not in texts:
            lines += own
            continue
        try:
            said, added = _in_script(training, after, file, texts[file], own)
        except ValueError as error:
            raise NotPatchedError(str(error)) from None
        lines += said
        code += added
    return Written(tuple(lines), code)


def _in_script(
    training: UserTraining, after: TrainConfig, path: str, text: str, lines: Sequence[ChangedLine]
) -> tuple[list[ChangedLine], tuple[AddedCode, ...]]:
    """The changes of a script: those that an edit makes, and code for the others."""
    before, script = text, parse(path, text)
    said, left = list[ChangedLine](), list[str]()
    for line in lines:
        try:
            done = changed_script(path, text, edit_of(line))
        except ValueError:
            left.append(line.name)
            continue
        text = done.text
        said.append(replace(line, text=done.shown, call=done.call, line=line.line or done.line))
    said = _together(said, path, text)
    program = next(file.format for file in training.files if file.path == path)
    return said, code_of(path, before, script, program, after, left)


def _together(said: Sequence[ChangedLine], path: str, text: str) -> list[ChangedLine]:
    """The changes with every line as it is after all of them; `text` is the script then.

    A new keyword that stands on such a line is part of it.
    """
    places, rows = parse(path, text).places, text.split("\n")
    at = {line.name: places[line.name].line for line in said if line.after and line.name in places}
    changed = {at[line.name]: line.line for line in said if line.call is None and line.name in at}
    return [
        replace(line, text=rows[row - 1].strip().rstrip(","), call=None, line=changed[row])
        if (row := at.get(line.name)) in changed
        else line
        for line in said
    ]


THE_ENVIRONMENT = "the environment"
"""Stands for the name of a file where variables are set."""


def by_file(lines: Sequence[ChangedLine]) -> dict[str, list[str]]:
    """What to change by name of the file, as texts such as `gradient_checkpointing: true (line 8)`.

    A line of a script that has several changes is said once.
    """
    by_path: dict[str, list[str]] = {}
    for line in lines:
        file = THE_ENVIRONMENT if line.file is None else PurePath(line.file).name
        if line.text is not None:
            texts = by_path.setdefault(file, [])
            if (text := _script_line(line)) not in texts:
                texts.append(text)
            continue
        if (line.file or "").endswith((COMMAND_LINE, *OF_SHELLS)):
            text, name = _option(line), f"--{line.name}"
        else:
            text = f"{line.name}: {line.after}" if line.file else f"{line.name}={line.after}"
            name = line.name
        if line.after is None:
            text = f"remove {name}"
        elif line.before is None and line.file:
            text = f"add {text}"
        place = f" (line {line.line})" if line.line is not None else ""
        by_path.setdefault(file, []).append(text + place)
    return by_path


def _option(line: ChangedLine) -> str:
    """`--max_length 1024`; a part of a setting as JSON, as `HfArgumentParser` reads it.

    Some programs write their options otherwise, such as Hydra's `data.max_length=1024`.
    """
    for program in PROGRAMS:
        if program.option and program.names is not None and program.names.row(line.name):
            return program.option.format(name=line.name, value=line.after)
    name, _, part = line.name.partition(".")
    value = str(line.after) if not part else shlex.quote(f'{{"{part}": {line.after}}}')
    return f"--{name} {value}"


def _script_line(line: ChangedLine) -> str:
    """`BATCH = 1 (line 3)`, or `add optim="sgd" to TrainingArguments(...) (line 8)`."""
    place = f" (line {line.line})" if line.line is not None else ""
    if line.after is None:
        return f"{line.call}(...) {line.text}{place}"
    text = line.text if line.call is None else f"add {line.text} to {line.call}(...)"
    return f"{text}{place}"


def code_text(code: AddedCode) -> str:
    """Code on one line, with the place where it belongs."""
    lines = [line.strip() for line in (*code.imports, *code.code.splitlines()) if line.strip()]
    return f"{code_place(code)}: {'; '.join(lines)}"


def code_place(code: AddedCode) -> str:
    """Where code belongs: `below the call that loads the model (line 3)`."""
    return code.where if code.line is None else f"{code.where} (line {code.line})"


def edit_of(line: ChangedLine) -> Edit:
    """The edit that makes a changed line."""
    if line.after is None:
        return Edit(line.name, removed=True)
    return Edit(line.name, _value(line.after))


def _value(text: str) -> Any:
    """A value of a changed line, which is written as YAML writes it on one line."""
    if text.startswith("[") and text.endswith("]"):
        return [_value(part.strip()) for part in text[1:-1].split(",") if part.strip()]
    try:
        return json.loads(text)
    except json.JSONDecodeError:
        return text


def patched(path: str, text: str, edits: Sequence[Edit]) -> str:
    """The text with the settings changed.

    Raises:
        NotPatchedError: a setting is not where it can be changed.
    """
    try:
        for edit in edits:
            text = _patched(path, text, edit)
    except ValueError as error:
        raise NotPatchedError(str(error)) from None
    return text


def _patched(path: str, text: str, edit: Edit) -> str:
    if path.endswith(".py"):
        return changed_script(path, text, edit).text
    if path.endswith(".json"):
        return _patched_json(text, edit)
    return without(text, edit.name) if edit.removed else patched_yaml(text, edit.name, edit.value)


def _patched_json(text: str, edit: Edit) -> str:
    """JSON has no comments, so all of it is written, in its order and with its indentation."""
    values: dict[str, Any] = json.loads(text)
    *path, last = edit.name.split(".")
    place = table_at(values, path)
    if place is None:
        raise ValueError(f"{'.'.join(path)} is not a table of settings")
    if edit.removed:
        place.pop(last, None)
    else:
        place[last] = edit.value
    lines = text.strip().split("\n")
    start = lines[1] if len(lines) > 1 else ""
    indent: str | None = start[: len(start) - len(start.lstrip())] or None
    return json.dumps(values, indent=indent, ensure_ascii=False) + "\n" * text.endswith("\n")
