"""Changes settings in the text of a training script: literals, and keywords that are not there."""

from __future__ import annotations

import ast
from collections.abc import Sequence
from typing import Any

from oomdoctor.stacks.reading.script import parse
from oomdoctor.stacks.reading.script_content import Script

# Names whose keyword belongs to the call that loads the model.
_OF_MODEL = {"dtype": "dtype", "attn_implementation": "attn_implementation"}
# Names of files for what scripts make as objects.
_OBJECTS = ("use_peft", "lora_", "load_in_", "bnb_", "use_bnb", "modules_to_save", "use_dora")
_TORCH = ("dtype", "torch_dtype", "bnb_4bit_compute_dtype")


def patched_python(path: str, text: str, pairs: Sequence[tuple[str, Any]]) -> str:
    """The text with the settings changed, by their names in files.

    Raises:
        ValueError: a setting is no literal, or belongs to a call that is not there.
    """
    for name, value in pairs:
        text = _changed(path, text, name, value)
    return text


def _changed(path: str, text: str, name: str, value: Any) -> str:
    script = parse(path, text)
    place = script.places.get(name)
    if place is not None:
        source = text[place.start : place.end]
        if not _is_literal(source, name):
            raise ValueError(f"{name} is {' '.join(source.split())}, no literal")
        return text[: place.start] + _source(name, value) + text[place.end :]
    if any(one.name == name for one in script.unread):
        raise ValueError(f"{name} is an expression")
    return _added(text, script, name, value)


def _added(text: str, script: Script, name: str, value: Any) -> str:
    head, _, inner = name.partition(".")
    if head.startswith(_OBJECTS):
        raise ValueError("adapters and quantized weights are objects of a script, not settings")
    kind = "model" if head in _OF_MODEL else "arguments"
    call = script.calls.get(kind)
    if call is None:
        raise ValueError(f"the script has no call that takes {head}")
    if any(one.arg == head for one in call.keywords):
        raise ValueError(f"{head} is no literal")
    source = _source(name, value) if not inner else f'{{"{inner}": {_source(name, value)}}}'
    last = max(
        (*call.args, *(one.value for one in call.keywords)),
        key=lambda node: (node.end_lineno or 0, node.end_col_offset or 0),
        default=None,
    )
    if last is None:
        raise ValueError(f"the call that takes {head} has no arguments yet")
    lines = text.split("\n")
    row, column = (last.end_lineno or 1) - 1, last.end_col_offset or 0
    before = lines[row].encode()[:column].decode()
    rest = lines[row][len(before) :]
    if call.lineno - 1 == row:
        lines[row] = f"{before}, {head}={source}{rest}"
    else:
        keyword = min((one for one in call.keywords), key=lambda one: one.lineno, default=None)
        indent = keyword.col_offset if keyword is not None else call.args[0].col_offset
        comma = rest if rest.startswith(",") else f",{rest}"
        lines[row : row + 1] = [f"{before}{comma}", f"{' ' * indent}{head}={source},"]
    return "\n".join(lines)


def _is_literal(source: str, name: str) -> bool:
    if name in _TORCH and source.startswith("torch."):
        return True
    try:
        ast.literal_eval(source)
    except (ValueError, SyntaxError):
        return False
    return True


def _source(name: str, value: Any) -> str:
    if name in _TORCH:
        return f"torch.{value}"
    if isinstance(value, str):
        return '"' + value.replace("\\", "\\\\").replace('"', '\\"') + '"'
    if isinstance(value, list | tuple):
        return "[" + ", ".join(_source("", one) for one in value) + "]"
    return repr(value)
