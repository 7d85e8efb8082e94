"""Changes settings in the text of a file, and leaves every other character as it is."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from oomdoctor.stacks.writing.python_patch import patched_python
from oomdoctor.stacks.writing.yaml_patch import patched_yaml


class NotPatchedError(ValueError):
    """A change that cannot be written into this file; the message is the reason."""


@dataclass(frozen=True, slots=True)
class Edit:
    """A setting by its dotted path, and its new value; `removed` takes it out of the file."""

    name: str
    value: Any = None
    removed: bool = False


def patched(path: str, text: str, edits: Sequence[Edit]) -> str:
    """The text with the settings changed.

    Raises:
        NotPatchedError: a setting is not where it can be changed.
    """
    try:
        if path.endswith(".py"):
            return patched_python(path, text, [(one.name, one.value) for one in edits])
        if any(one.removed for one in edits):
            raise ValueError("a setting would have to be removed")
        pairs = [(one.name, one.value) for one in edits]
        if path.endswith(".json"):
            return _patched_json(text, pairs)
        return patched_yaml(text, pairs)
    except ValueError as error:
        raise NotPatchedError(str(error)) from None


def _patched_json(text: str, pairs: Sequence[tuple[str, Any]]) -> str:
    """JSON has no comments, so all of it is written, in its order and with its indentation."""
    values: dict[str, Any] = json.loads(text)
    for name, value in pairs:
        *path, last = name.split(".")
        place = values
        for part in path:
            inner = place.setdefault(part, {})
            if not isinstance(inner, dict):
                raise ValueError(f"{part} is no table of settings")
            place = inner
        place[last] = value
    lines = text.strip().split("\n")
    start = lines[1] if len(lines) > 1 else ""
    indent: str | None = start[: len(start) - len(start.lstrip())] or None
    return json.dumps(values, indent=indent, ensure_ascii=False) + "\n" * text.endswith("\n")
