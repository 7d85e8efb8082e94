"""The table of a program or class, from `data/stacks/rows.toml` and `settings.toml`."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from functools import partial
from typing import Any

from oomdoctor.records.configuration import config as rung
from oomdoctor.records.configuration.config import TrainConfig
from oomdoctor.records.configuration.keys import low_rank
from oomdoctor.stacks.engines import fsdp_word
from oomdoctor.stacks.names import fsdp, parallel, techniques, values
from oomdoctor.stacks.names.row import (
    LEFT_OUT,
    Read,
    Row,
    Table,
    Write,
    by_name,
    each_word,
    listed,
    published_data,
    rows_data,
    settings_data,
)
from oomdoctor.stacks.partial_config import PartialConfig

Functions = Mapping[str, Any]
"""What rows name: readers, writers, what holds for a rung, and several rows."""
_SHARED: Functions = {
    name: attribute
    for module in (rung, values, techniques, fsdp, parallel)
    for name, attribute in vars(module).items()
} | {"low_rank": low_rank, "fsdp_word": fsdp_word}
_NOTHING_SAID: dict[str, Any] = {"neutral": "", "reasons": {}, "defaults": {}, "source": ""}
_KINDS: Mapping[str, Callable[[str], Read]] = {
    "number": values.whole,
    "switch": values.switched,
    "auto": partial(values.switched, auto=True),
    "flag": values.flagged,
    "text": values.text,
    "file": values.file,
    "names": values.names,
    "decimal": partial(values.given, convert=values.decimal),
    "integer": partial(values.given, convert=values.integer),
    "word": partial(values.given, convert=values.word),
    "dtype": partial(values.given, convert=values.dtype),
    "optimizer": partial(values.given, convert=values.optimizer),
}


def table(name: str, own: Functions | None = None) -> Table:
    """The table of this name. `own` are the functions of its module, beside those of `names`."""
    said = _NOTHING_SAID | settings_data().get(name, {})
    return Table(
        tuple(_rows(name, {**_SHARED, **(own or {})})),
        listed(said["neutral"]),
        by_name(said["reasons"]),
        said["defaults"],
        said["source"],
        frozenset(published_data().get(name, ())),
    )


def _rows(name: str, functions: Functions) -> Iterator[Row]:
    for names, said in rows_data().get(name, {}).items():
        if isinstance(said, str):
            yield _row(names, {"number": said, "copies": said}, functions)
        elif "rows" not in said:
            yield _row(names, said, functions)
        elif said["rows"] in rows_data():
            yield from _rows(said["rows"], functions)
        else:
            yield from functions[said["rows"]]


def _row(name: str, said: Mapping[str, Any], functions: Functions) -> Row:
    aliases = tuple(said.get("aliases", "").split())
    if "means" in said:
        return values.words(name, said["keys"], each_word(said["means"]), *aliases)
    read, keys = _reader(said, functions)
    keys = said["keys"].split() if "keys" in said else keys
    return Row(name, tuple(keys), read, _writer(said, functions), aliases)


def _reader(said: Mapping[str, Any], functions: Functions) -> tuple[Read, list[str]]:
    """How a value is read, and what it decides."""
    if "reader" in said:
        return functions[said["reader"]], []
    if "alone" in said:
        return parallel.alone(said["alone"]), []
    if "on" in said:
        return values.if_on(said["on"], said.get("off", {})), list(said["on"])
    kind = next((kind for kind in _KINDS if kind in said), None)
    read = None if kind is None else _KINDS[kind](said[kind])
    keys = [] if kind is None else [said[kind]]
    if "words" in said:
        return values.among(said["words"], said.get("null"), read), keys
    assert read is not None, said
    also: PartialConfig = said.get("also", {})
    return (
        lambda value: {**also, **read_values} if (read_values := read(value)) else read_values,
        keys,
    )


def _writer(said: Mapping[str, Any], functions: Functions) -> Write | None:
    write = _write(said, functions)
    if write is None:
        return None
    usual = said.get("usual", LEFT_OUT)
    holds = _holds(said.get("only", {}), functions)

    def written(config: TrainConfig) -> object:
        value = write(config) if holds(config) else LEFT_OUT
        return LEFT_OUT if value == usual else value

    return written


def _write(said: Mapping[str, Any], functions: Functions) -> Write | None:
    if "copies" in said:
        return lambda config: _in_words(getattr(config, said["copies"]), said.get("as"))
    if "is" in said:
        return _holds(said["is"], functions)
    if "writer" in said:
        function: Write = functions[said["writer"]]
        return function
    return (lambda _: said.get("write", True)) if {"write", "only"} & said.keys() else None


def _in_words(value: Any, words: Mapping[str, object] | None) -> object:
    if words is not None:
        return words.get(value, LEFT_OUT)
    return list(value) if isinstance(value, tuple) else value


def _holds(said: str | Mapping[str, Any], functions: Functions) -> Callable[[TrainConfig], bool]:
    """Whether a rung is one of which a function is true, or that has values: one, or of a list."""
    if isinstance(said, str):
        function: Callable[[TrainConfig], bool] = functions[said]
        return function
    asked = {key: value if isinstance(value, list) else [value] for key, value in said.items()}
    return lambda config: all(getattr(config, key) in value for key, value in asked.items())
