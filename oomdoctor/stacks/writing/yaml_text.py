"""Writes plain values as YAML, and changes settings in the text of a YAML file.

Writing needs no PyYAML, which is not part of a light install. A change leaves comments, order and
layout as they are: PyYAML says where each value stands, and only these characters are replaced. It
is imported there, as it is where the file is read.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from oomdoctor.stacks.quoted import quoted

# Text that YAML reads as text without quotes.
_PLAIN = re.compile(r"[A-Za-z_/.][\w./@+-]*(?: [\w./@+-]+)*")
# Words that YAML reads as something else.
_WORDS = frozenset({"true", "false", "yes", "no", "on", "off", "null", "y", "n", "none", "~"})


def yaml_text(settings: Mapping[str, object], indent: int = 0) -> str:
    """The settings as YAML, one a line, in their order."""
    lines = []
    for key, value in settings.items():
        head = " " * indent + f"{scalar(key)}:"
        if isinstance(value, Mapping) and value:
            lines.append(head)
            lines.append(yaml_text(value, indent + 2).rstrip("\n"))
        elif isinstance(value, list | tuple) and any(isinstance(item, Mapping) for item in value):
            lines.append(head)
            lines += [_item(item, indent + 2) for item in value]
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
    return quoted(text)


def patched_yaml(text: str, name: str, value: Any) -> str:
    """The text with a setting changed, by its dotted path.

    Raises:
        ValueError: a setting cannot be changed in place.
    """
    path = name.split(".")
    text = text if text.endswith("\n") or not text else text + "\n"
    node = _table(text)
    for depth, part in enumerate(path):
        pair = next((pair for pair in node.value if pair[0].value == part), None)
        if pair is None:
            return _added(text, node, path[depth:], value)
        if depth == len(path) - 1:
            return _replaced(text, pair[0], pair[1], value)
        node = pair[1]
        if node.id != "mapping":
            raise ValueError(f"{part} is not a table of settings")
    raise AssertionError(path)


def without(text: str, name: str) -> str:
    """The text without a setting, if no other one shares its lines.

    Raises:
        ValueError: it is not there, or the table would have nothing else.
    """
    node, pair = _table(text), None
    for part in name.split("."):
        pairs = node.value if node.id == "mapping" else []
        pair = next((other for other in pairs if other[0].value == part), None)
        if pair is None or node.flow_style or len(node.value) == 1:
            raise ValueError(f"{name} cannot be taken out of the file")
        node = pair[1]
    assert pair is not None  # a name has a part
    start = text.rfind("\n", 0, pair[0].start_mark.index) + 1
    return text[:start] + text[_end_of(text, pair) :]


def _table(text: str) -> Any:
    """The settings of a file as nodes, which know their places.

    Raises:
        ValueError: the file has none.
    """
    import yaml  # type: ignore[import-untyped]

    node = yaml.compose(text, yaml.SafeLoader)
    if node is None or node.id != "mapping":
        raise ValueError("the file is not a table of settings")
    return node


def _replaced(text: str, key: Any, node: Any, value: Any) -> str:
    start, end = node.start_mark.index, node.end_mark.index
    if node.id == "scalar" and start == end:  # `key:` with nothing behind it
        colon = text.index(":", key.end_mark.index)
        return f"{text[: colon + 1]} {scalar(value)}{text[colon + 1 :]}"
    is_list = node.id == "sequence" and not node.flow_style
    if node.id == "mapping" or is_list or getattr(node, "style", None) in ("|", ">"):
        raise ValueError(f"{key.value} has several lines")
    if text[start] in "&*!":
        raise ValueError(f"{key.value} has an anchor or a tag")
    return text[:start] + scalar(value) + text[end:]


def _added(text: str, node: Any, path: list[str], value: Any) -> str:
    """A new setting behind the last one of its table."""
    if not node.value:
        raise ValueError("the table has no settings yet")
    if node.flow_style:
        if len(path) > 1:
            raise ValueError(f"{path[0]} would need a table on one line")
        end = node.value[-1][1].end_mark.index
        return f"{text[:end]}, {path[0]}: {scalar(value)}{text[end:]}"
    column = node.value[0][0].start_mark.column
    lines = []
    for depth, part in enumerate(path):
        head = " " * (column + 2 * depth) + f"{part}:"
        lines.append(f"{head} {scalar(value)}" if depth == len(path) - 1 else head)
    place = _end_of(text, node.value[-1])
    return text[:place] + "".join(f"{line}\n" for line in lines) + text[place:]


def _end_of(text: str, pair: Any) -> int:
    """Where the line begins that follows the last line of a setting."""
    _, node = pair
    end = node.end_mark.index
    if node.id in ("mapping", "sequence") and not node.flow_style and node.value:
        last = node.value[-1]
        return _end_of(text, last if node.id == "mapping" else (None, last))
    newline = text.find("\n", max(0, end - 1) if text[end - 1 : end] == "\n" else end)
    return len(text) if newline < 0 else newline + 1
