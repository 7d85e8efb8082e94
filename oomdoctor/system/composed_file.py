"""Files of settings that build on another file or on each other, as OmegaConf reads them."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from oomdoctor.stacks.names.row import flat
from oomdoctor.system.settings_file import read_with_text


def read_composed(path: Path, option: str) -> tuple[Mapping[str, Any], str]:
    """The settings of a file with those that it names, and its own text.

    Raises:
        OomDoctorError: a file is missing or cannot be read (exit 2).
    """
    values, text = _with_parent(path, option)
    return _resolved(values), text


def _with_parent(path: Path, option: str, deepest: int = 4) -> tuple[Mapping[str, Any], str]:
    """The settings of a file above those of the file next to it that it names in `defaults`."""
    values, text = read_with_text(path, option)
    parent = values.get("defaults")
    if isinstance(parent, str) and parent.endswith((".yaml", ".yml")) and deepest:
        named = path.parent / parent
        if named.is_file():
            values = _merged(_with_parent(named, option, deepest - 1)[0], values)
    return values, text


def _merged(below: Mapping[str, Any], above: Mapping[str, Any]) -> dict[str, Any]:
    both = below.keys() & above.keys()
    inner = {
        key: _merged(below[key], above[key])
        for key in both
        if isinstance(below[key], Mapping) and isinstance(above[key], Mapping)
    }
    return {**below, **above, **inner}


_UNRESOLVED = object()
_INTERPOLATION = re.compile(r"\$\{([\w.]+)\}")


def _resolved(values: Mapping[str, Any]) -> dict[str, Any]:
    """The settings with `${other.setting}` replaced by that setting, as OmegaConf does.

    What is computed of others is left out.
    """
    by_name = dict(flat(values))

    def resolve(value: Any, deepest: int) -> Any:
        if isinstance(value, Mapping):
            inner = {key: resolve(item, deepest) for key, item in value.items()}
            return {key: item for key, item in inner.items() if item is not _UNRESOLVED}
        if not isinstance(value, str) or "${" not in value:
            return value
        match = _INTERPOLATION.fullmatch(value)
        if match is None or match[1] not in by_name or not deepest:
            return _UNRESOLVED
        return resolve(by_name[match[1]], deepest - 1)

    resolved: dict[str, Any] = resolve(values, 8)
    return resolved
