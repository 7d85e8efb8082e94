"""Nested settings as dotted paths."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any


def flat(values: Mapping[str, Any], head: str = "") -> Iterator[tuple[str, Any]]:
    """Each setting with its dotted path, in the order of the file. Lists stay values."""
    for key, value in values.items():
        name = f"{head}{key}"
        if isinstance(value, Mapping) and value:
            yield from flat({str(inner): item for inner, item in value.items()}, f"{name}.")
        else:
            yield name, value


def shown(value: Any) -> str:
    """A value as a file writes it, cut to a line."""
    if value is None:
        return "null"
    if isinstance(value, bool):
        return str(value).lower()
    listed = isinstance(value, list | tuple)
    text = f"[{', '.join(map(shown, value))}]" if listed else str(value)
    text = " ".join(text.split())
    return text if len(text) <= 60 else f"{text[:57]}..."
