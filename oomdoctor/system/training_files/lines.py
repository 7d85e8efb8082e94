"""The line of each setting in a YAML or JSON file."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any


def lines_of(text: str) -> dict[str, int]:
    """The lines by dotted path, counted from 1; empty where PyYAML cannot read the text.

    JSON is YAML as well, unless it is indented with tabs.
    """
    try:
        import yaml  # type: ignore[import-untyped]
    except ImportError:
        return {}
    try:
        return dict(_walk(yaml.compose(text, yaml.SafeLoader), ""))
    except (yaml.YAMLError, ValueError, RecursionError):
        return {}


def _walk(node: Any, head: str) -> Iterator[tuple[str, int]]:
    if node is None or node.id != "mapping":
        return
    for key, value in node.value:
        if key.id != "scalar":
            continue
        name = f"{head}{key.value}"
        yield name, key.start_mark.line + 1
        yield from _walk(value, f"{name}.")
