"""Reads the command that starts a training, as typed or as the last one of a shell script.

Nothing is run; of shell variables, those are known that the script itself sets to plain text.
"""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from string import Template
from types import MappingProxyType

from oomdoctor.records.facts.choices import FormatName
from oomdoctor.stacks.names.row import Table, flat
from oomdoctor.stacks.programs import ms_swift, rollouts, trl

# Programs that start a training by a word of their own: `trl sft`, `swift rlhf`.
_STARTERS: Mapping[str, tuple[FormatName, Collection[str]]] = {
    "trl": ("trl", trl.COMMANDS),
    "swift": ("ms-swift", ms_swift.COMMANDS),
}
_SETTINGS = (".yaml", ".yml", ".json", ".toml")
_COUNTS = ("nproc_per_node", "num_processes", "num_gpus")
_NODES = "nnodes"  # accelerate counts the processes of all machines


@dataclass(frozen=True, slots=True)
class Command:
    """What starts a training: the file that it runs or reads, and options before and after it.

    `file` is a script or a file of settings; None for commands such as `trl sft`, whose options say
    all. `program` is the one that a command such as `swift rlhf` names, `word` what is behind its
    name, or its module, and `typed` both as people type them.
    """

    file: str | None
    options: Mapping[str, object]
    launcher: Mapping[str, object]
    program: FormatName | None = None
    word: str = ""
    typed: str = ""

    @property
    def processes(self) -> int | None:
        """On how many GPUs the launcher starts it, if it says so."""
        counts = [self.launcher[name] for name in _COUNTS if name in self.launcher]
        nodes = self.launcher.get(_NODES, 1)
        counted = [
            count for count in (*counts, nodes) if isinstance(count, int) and 0 < count < 10**6
        ]
        return counted[0] * counted[1] if len(counted) == 2 else None


def command_in(text: str) -> Command | None:
    """The command of one line, or the last one of a shell script; None if there is none."""
    variables: dict[str, str] = {}
    last: Command | None = None
    for line in re.sub(r"\\\r?\n", " ", text).splitlines():
        try:
            words = shlex.split(Template(line).safe_substitute(variables), comments=True)
        except ValueError:  # an open quote
            continue
        for word in words[words[:1] == ["export"] :]:
            name, equals, value = word.partition("=")
            if not (equals and name.isidentifier()):
                break
            variables[name] = value
        last = command_of(words, variables) or last
    return last


def command_of(
    words: Sequence[str], variables: Mapping[str, str] = MappingProxyType({})
) -> Command | None:
    """The command in the words of a line; None if it starts no training that can be read.

    `variables` are those of the shell: ms-swift reads the number of GPUs in one.
    """
    for place, word in enumerate(words):
        before, after = words[:place], words[place + 1 :]
        if word in _STARTERS and after and not after[0].startswith("-"):
            (program, started), (start, *behind) = _STARTERS[word], after
            if start not in started:
                return None
            file = behind[0] if program == "ms-swift" and _names_settings(behind) else None
            launcher = options_of(before) | _counts_in(variables, program)
            return Command(file, options_of(behind), launcher, program, start, f"{word} {start}")
        if word in rollouts.COMMANDS:
            program, _ = rollouts.COMMANDS[word]
            options = hydra_options(after) if program == "verl" else options_of(after)
            launcher = options_of(before[:-1] if before[-1:] == ["-m"] else before)
            return Command(None, options, launcher, program, word, word)
        value = before and before[-1].startswith("--")
        if word.endswith(".py") or (word.endswith(_SETTINGS) and not value):
            return Command(word, options_of(after), options_of(before))
    return None


def _names_settings(words: Sequence[str]) -> bool:
    return bool(words) and words[0].endswith(_SETTINGS)


def _counts_in(variables: Mapping[str, str], program: FormatName) -> dict[str, object]:
    """How many processes ms-swift starts, by the variables of torchrun's options."""
    names = (_COUNTS[0], _NODES) if program == "ms-swift" else ()
    return {name: _value(variables[name.upper()]) for name in names if name.upper() in variables}


def with_unsaid(options: Mapping[str, object], module: str, names: Table) -> dict[str, object]:
    """The settings for a module, with what it trains for and what else they leave unsaid."""
    program, objective = rollouts.COMMANDS[module]
    unsaid = rollouts.UNSAID[program] if objective == "grpo" else {}
    said = {row.name for name, _ in flat(options) if (row := names.row(name)) is not None}
    open_names = {name: value for name, value in unsaid.items() if name not in said}
    return {"objective": objective, **open_names, **options}


def hydra_options(words: Sequence[str]) -> dict[str, object]:
    """Hydra's words `key=value`, `+key=value` and `++key=value`, by their dotted keys."""
    pairs = (word.lstrip("+").partition("=") for word in words if "=" in word)
    return {key: _value(value) for key, _, value in pairs if re.fullmatch(r"[\w.]+", key)}


def options_of(words: Sequence[str]) -> dict[str, object]:
    """The options by their names with underscores; one without a value is a switch."""
    options: dict[str, object] = {}
    name = ""
    for word in words:
        if word.startswith("--"):
            name, equals, value = word[2:].partition("=")
            name = name.replace("-", "_")
            options[name] = _value(value) if equals else True
        elif name and options[name] is True:
            options[name] = _value(word)
        elif name:
            before = options[name]
            options[name] = [*(before if isinstance(before, list) else [before]), _value(word)]
    return options


def _value(word: str) -> object:
    try:
        return json.loads(word.lower() if word in ("True", "False") else word)
    except (ValueError, RecursionError):
        return word
