"""Writes plain values as YAML without PyYAML, which is not part of a light install."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping

# Text that YAML reads as text without quotes.
_PLAIN = re.compile(r"[A-Za-z_/.][\w./@+-]*(?: [\w./@+-]+)*")
# Words that YAML reads as something else.
_WORDS = frozenset({"true", "false", "yes", "no", "on", "off", "null", "y", "n", "none", "~"})


def yaml_text(settings: Mapping[str, object], indent: int = 0) -> str:
    """The settings as YAML, one a line, in their order."""
    lines = []
    for key, value in settings.items():
        head = " " * indent + f"{key}:"
        if isinstance(value, Mapping) and value:
            lines.append(head)
            lines.append(yaml_text(value, indent + 2).rstrip("\n"))
        elif isinstance(value, list | tuple) and any(isinstance(one, Mapping) for one in value):
            lines.append(head)
            lines += [_item(one, indent + 2) for one in value]
        else:
            lines.append(f"{head} {scalar(value)}")
    return "\n".join(lines) + "\n"


def _item(value: object, indent: int) -> str:
    if not isinstance(value, Mapping):
        return f"{' ' * indent}- {scalar(value)}"
    inner = yaml_text(value, indent + 2).rstrip("\n")
    return f"{' ' * indent}- {inner.lstrip()}"


def scalar(value: object) -> str:
    """A value on one line."""
    if value is None:
        return "null"
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, list | tuple):
        return f"[{', '.join(map(scalar, value))}]"
    if isinstance(value, Mapping):
        return "{}"
    if isinstance(value, int):
        return str(value)
    if isinstance(value, float):
        text = repr(value)  # YAML 1.1 reads 2e-05 as text, but 2.0e-05 as a number
        return re.sub(r"^(-?\d+)e", r"\1.0e", text)
    text = str(value)
    if _PLAIN.fullmatch(text) and text.lower() not in _WORDS:
        return text
    return json.dumps(text, ensure_ascii=False)
