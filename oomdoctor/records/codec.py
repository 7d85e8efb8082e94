"""Records to JSON and back, strictly: a wrong type or an unknown key is an error.

The type hints are the schema, so a record and its document cannot differ. A key that was added
later has a default in its record, so documents of earlier versions can still be read. Documents of
newer versions cannot: ignoring a key could change what the others mean.
"""

from __future__ import annotations

import dataclasses
import json
import math
import re
import types
from collections.abc import Mapping
from functools import cache
from typing import Any, Literal, TypeVar, Union, get_args, get_origin, get_type_hints

T = TypeVar("T")
# At least eight integers below each other. In a string of JSON there is no line break.
_NUMBERS = re.compile(r"\[\n\s+(?:-?\d+,\n\s+){7,}-?\d+\n\s+\]")


class CodecError(ValueError):
    """A document does not match the record; the message names the place."""


def to_json(record: object) -> Any:
    """The record as plain JSON values (dict, list, str, int, float, bool, None).

    Raises:
        CodecError: a float is not finite, which JSON cannot express.
    """
    if dataclasses.is_dataclass(record) and not isinstance(record, type):
        return {f.name: to_json(getattr(record, f.name)) for f in dataclasses.fields(record)}
    if isinstance(record, Mapping):
        return {str(key): to_json(value) for key, value in record.items()}
    if isinstance(record, tuple | list):
        return [to_json(value) for value in record]
    if isinstance(record, float) and not math.isfinite(record):
        raise CodecError(f"JSON cannot express {record}; use None for unknown")
    if record is None or isinstance(record, str | int | float | bool):
        return record
    raise CodecError(f"{type(record).__name__} has no JSON form")


def from_json(kind: type[T], value: Any) -> T:
    """A record of type `kind` from plain JSON values.

    Raises:
        CodecError: a key is unknown, one without a default is missing, or a value has another
            type.
    """
    return _read(kind, value, kind.__name__)  # type: ignore[no-any-return]


def dumps(record: object) -> str:
    """The record as an indented JSON text with a final newline; long rows of numbers are lines."""
    text = json.dumps(to_json(record), indent=2, ensure_ascii=False, allow_nan=False) + "\n"
    return _NUMBERS.sub(lambda numbers: f"[{' '.join(numbers[0][1:-1].split())}]", text)


def loads(kind: type[T], text: str) -> T:
    """A record from a JSON text.

    Raises:
        CodecError: the text is not JSON or does not match the record.
    """
    try:
        value = json.loads(text)
    except ValueError as error:
        raise CodecError(f"not JSON: {error}") from None
    return from_json(kind, value)


def shared(source: object, kind: type) -> dict[str, Any]:
    """The fields of a record that `source` has under the same names, with its values."""
    names = [field.name for field in dataclasses.fields(kind)]
    return {name: getattr(source, name) for name in names if hasattr(source, name)}


_hints = cache(get_type_hints)


@cache
def _needed(kind: Any) -> tuple[str, ...]:
    """The fields that have no default."""
    absent = dataclasses.MISSING
    return tuple(
        field.name
        for field in dataclasses.fields(kind)
        if field.default is absent and field.default_factory is absent
    )


def _read(kind: Any, value: Any, where: str) -> Any:
    if kind is Any or (isinstance(kind, type) and type(value) is kind):  # most values: plain ones
        return value
    if dataclasses.is_dataclass(kind):
        return _read_record(kind, value, where)
    origin, args = get_origin(kind), get_args(kind)
    if origin is Literal:
        if any(value == arg and type(value) is type(arg) for arg in args):
            return value
        raise CodecError(f"{where}: {value!r} is not one of {', '.join(map(repr, args))}")
    if origin in (Union, types.UnionType):
        return _read_union(args, value, where)
    if origin is tuple:
        if not isinstance(value, list):
            raise CodecError(f"{where}: expected a list, got {_word(value)}")
        return tuple(_read(args[0], item, f"{where}[{i}]") for i, item in enumerate(value))
    if origin is not None and issubclass(origin, Mapping):
        if not isinstance(value, dict):
            raise CodecError(f"{where}: expected an object, got {_word(value)}")
        return {key: _read(args[1], item, f"{where}.{key}") for key, item in value.items()}
    if kind is float and type(value) is int:
        return float(value)
    if kind is type(None) and value is None:
        return None
    raise CodecError(f"{where}: expected {getattr(kind, '__name__', kind)}, got {_word(value)}")


def _read_record(kind: Any, value: Any, where: str) -> Any:
    if not isinstance(value, dict):
        raise CodecError(f"{where}: expected an object, got {_word(value)}")
    hints = _hints(kind)
    unknown = sorted(set(value) - set(hints))
    missing = [name for name in _needed(kind) if name not in value]
    if unknown or missing:
        newer = "perhaps from a newer version of oomdoctor"
        faults = [f"unknown {', '.join(unknown)}, {newer}"] if unknown else []
        faults += [f"missing {', '.join(missing)}"] if missing else []
        raise CodecError(f"{where}: {'; '.join(faults)}")
    return kind(
        **{name: _read(hints[name], item, f"{where}.{name}") for name, item in value.items()}
    )


def _read_union(args: tuple[Any, ...], value: Any, where: str) -> Any:
    errors = []
    for arg in args:
        try:
            return _read(arg, value, where)
        except CodecError as error:
            errors.append(error)
    # The error at the deepest place is about the alternative that came closest.
    raise max(errors, key=lambda error: len(str(error).split(":")[0]))


def _word(value: Any) -> str:
    return "null" if value is None else f"{type(value).__name__} {value!r}"[:80]
