"""What a library refuses, and what it makes of settings, in plain values."""

from __future__ import annotations

import re
from collections.abc import Mapping

_IN_QUOTES = re.compile(r"[`'\"]([A-Za-z_]\w*)")


class ParserError(ValueError):
    """What a library refuses; `setting` is the name in the file, None if it does not say."""

    def __init__(self, setting: str | None, message: str) -> None:
        super().__init__(message)
        self.setting = setting


def of_pydantic(error: Exception, head: str) -> ParserError:
    """The first error of a pydantic model, or the first line of another error."""
    listed = getattr(error, "errors", None)
    if listed is None:
        return ParserError(None, (str(error).strip() or type(error).__name__).splitlines()[0])
    first = listed()[0]
    name = ".".join(str(part) for part in first.get("loc", ()))
    message = str(first.get("msg", "")).removeprefix("Value error, ")
    return ParserError(f"{head}{name}" if name else None, message.splitlines()[0])


def named(message: str, values: Mapping[str, object]) -> str | None:
    """The setting that a message is about: one in quotes, or one whose name or value it has."""
    for word in _IN_QUOTES.findall(message):
        if word in values:
            return str(word)
    for name, value in values.items():
        if re.search(rf"\b{re.escape(str(name))}\b", message):
            return str(name)
        if isinstance(value, str) and len(value) > 2 and message.startswith(value):
            return str(name)
    return None


def plain(values: Mapping[str, object]) -> dict[str, object]:
    """The values that JSON has; enums become their values."""
    found: dict[str, object] = {}
    for name, value in values.items():
        one = getattr(value, "value", value)
        if isinstance(one, Mapping):
            found[str(name)] = plain(one)
        elif isinstance(one, str | int | float | bool | None):
            found[str(name)] = one
        elif isinstance(one, list | tuple) and all(isinstance(part, str) for part in one):
            found[str(name)] = list(one)
    return found
