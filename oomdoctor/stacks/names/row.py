"""A row of a table of names: one setting of a program, and the keys of a rung behind it.

The keys that rows may use are those of `partial_config.PartialConfig`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache, partial
from typing import Any

from oomdoctor.package_data import data_of
from oomdoctor.records.configuration.config import TrainConfig
from oomdoctor.stacks.partial_config import PartialConfig

Read = Callable[[object], PartialConfig]
Write = Callable[[TrainConfig], object]
Settings = dict[str, Any]
"""A file's settings as plain values: tables inside tables, lists, words and numbers."""
LEFT_OUT: object = object()
"""What a `write` returns if the setting is not needed in the file."""


class NotTakenError(ValueError):
    """A value that a rung cannot express; the message is the reason.

    `matters` is False if the value changes neither memory nor speed.
    """

    def __init__(self, reason: str, *, matters: bool = True) -> None:
        super().__init__(reason)
        self.matters = matters


class RefusedError(NotTakenError):
    """A value with which each GPU needs another amount of memory than any rung says."""


@dataclass(frozen=True, slots=True)
class Row:
    """One setting. `name` is its dotted path, `aliases` are read but never written.

    `keys` are what it decides. `read` gives the keys of a value and raises `NotTakenError`, or
    ValueError for a value that the program itself would refuse. Without `write` it is only read.
    """

    name: str
    keys: tuple[str, ...]
    read: Read
    write: Write | None = None
    aliases: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Table:
    """All names of one program or class.

    `neutral` are names that change neither memory nor speed, `reasons` those that a rung cannot
    express, with the reason. Both match a whole path or its first parts. `published` are all names
    of the program, if they are known. `defaults` are the values
    of keys that the program uses if its file is silent, and `source` is where they are from.
    """

    rows: tuple[Row, ...]
    neutral: frozenset[str] = frozenset()
    reasons: Mapping[str, str] = field(default_factory=dict)
    defaults: PartialConfig = field(default_factory=PartialConfig)
    source: str = ""
    published: frozenset[str] = frozenset()

    def row(self, name: str) -> Row | None:
        """The row of a setting, by its name or an alias."""
        return next((row for row in self.rows if name == row.name or name in row.aliases), None)

    def __or__(self, other: Table) -> Table:
        """Both tables; where they name the same setting, the right one counts."""
        names = {row.name for row in other.rows}
        return Table(
            (*(row for row in self.rows if row.name not in names), *other.rows),
            self.neutral | other.neutral,
            {**self.reasons, **other.reasons},
            {**self.defaults, **other.defaults},
            other.source or self.source,
            self.published | other.published,
        )


def by_name(names: Mapping[str, str]) -> dict[str, str]:
    """A value by each of its names, from `value -> names`."""
    return {name: value for value, text in names.items() for name in text.split()}


_data: Callable[[str], dict[str, Any]] = cache(data_of)
rows_data = partial(_data, "stacks/rows.toml")
"""The settings that a rung knows, by table."""
settings_data = partial(_data, "stacks/settings.toml")
"""What is known of programs, their words, and settings without a row, by table."""
published_data = partial(_data, "stacks/published.json")
"""All settings of some programs, and torchtune's models (scripts/build_stack_names.py). They tell a
setting that a rung cannot express from one that the program does not know."""


def words_of(setting: str) -> dict[str, Any]:
    """The words of a program for a setting, and what each means, as `settings.toml` has them."""
    return each_word(settings_data()["words"][setting])


def each_word(rows: Mapping[str, Any]) -> dict[str, Any]:
    """The meaning of each word, from `words -> meaning`."""
    return {word: meaning for words, meaning in rows.items() for word in words.split() or [words]}


def exports_data(program: str) -> dict[str, Any]:
    """What a program's exported files have beside the settings of a rung: the caller's own copy."""
    data: dict[str, Any] = data_of("stacks/exports.json")[program]
    return data


def listed(text: str) -> frozenset[str]:
    """Names with spaces between."""
    return frozenset(text.split())


def written(table: Table, config: TrainConfig) -> dict[str, object]:
    """The settings of a rung by their dotted paths."""
    values = {row.name: row.write(config) for row in table.rows if row.write is not None}
    return {name: value for name, value in values.items() if value is not LEFT_OUT}


def nested(settings: Mapping[str, object]) -> Settings:
    """Dotted paths as mappings inside mappings."""
    tree: Settings = {}
    for name, value in settings.items():
        put(tree, name, value)
    return tree


def table_at(tree: Settings, path: Sequence[str]) -> Settings | None:
    """The table at a path, made if it is not there; None if something else is in its place."""
    for part in path:
        inner = tree.setdefault(part, {})
        if not isinstance(inner, dict):
            return None
        tree = inner
    return tree


def put(tree: Settings, name: str, value: object) -> None:
    """Set a value by its dotted path, unless something else than a table is on the way."""
    *path, last = name.split(".")
    place = table_at(tree, path)
    if place is not None:
        place[last] = value


def in_names(name: str, names: frozenset[str] | Mapping[str, str]) -> str | None:
    """The entry of `names` that is the path or its first parts."""
    parts = name.split(".")
    heads = (".".join(parts[:count]) for count in range(len(parts), 0, -1))
    return next((head for head in heads if head in names), None)


_DEEPEST = 12


def flat(
    values: Mapping[str, object], head: str = "", deepest: int = _DEEPEST
) -> Iterator[tuple[str, object]]:
    """Each setting with its dotted path, in the order of the file. Lists stay values.

    Tables that lie deeper, such as those of a YAML file that contains itself, are left out.
    """
    for key, value in values.items():
        name = f"{head}{key}"
        if isinstance(value, Mapping) and value:
            inner = {str(inner_key): item for inner_key, item in value.items()} if deepest else {}
            yield from flat(inner, f"{name}.", deepest - 1)
        else:
            yield name, value


def shown(value: object) -> str:
    """A value as a file writes it, cut to a line."""
    if value is None:
        return "null"
    if isinstance(value, bool):
        return str(value).lower()
    text = f"[{', '.join(map(shown, value))}]" if isinstance(value, list | tuple) else str(value)
    text = " ".join(text.split())
    return text if len(text) <= 60 else f"{text[:57]}..."
