"""Nested settings as dotted paths."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

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
            inner = {str(one): item for one, item in value.items()} if deepest else {}
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
