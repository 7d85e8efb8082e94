"""Changes settings in the text of a training script: literals, and keywords of the calls there."""

from __future__ import annotations

import ast
from dataclasses import dataclass
from typing import Any

from oomdoctor.stacks.programs.arguments import ARGUMENTS
from oomdoctor.stacks.programs.trl import CONFIGS, OBJECTIVES, SFT_CONFIG
from oomdoctor.stacks.programs.unsloth import CLASSES as UNSLOTH_CLASSES
from oomdoctor.stacks.reading.python_values import name_of, offset_of
from oomdoctor.stacks.reading.script import parse
from oomdoctor.stacks.reading.script_calls import LOADED_BY_TRL, LORA, Script
from oomdoctor.stacks.scripts.code import literal

# Keywords of the call that loads the model, or of TRL's `model_init_kwargs`.
_OF_MODEL = ("dtype", "attn_implementation")
# What a program's files call a keyword of peft's or transformers' configuration.
_IN_CALLS = {name: keyword for keyword, name in LORA.items()} | {
    "lora_modules_to_save": "modules_to_save",
    "use_bnb_nested_quant": "bnb_4bit_use_double_quant",
}
_OF_LORA = ("r", "lora_alpha", "lora_dropout", "target_modules", "use_dora", "use_rslora",
            "modules_to_save")  # fmt: skip
_QUANTIZED = ("load_in_", "bnb_")
_TORCH = ("dtype", "torch_dtype", "bnb_4bit_compute_dtype")


@dataclass(frozen=True, slots=True)
class Edit:
    """A setting by its dotted path, and its new value; `removed` takes it out of the file."""

    name: str
    value: Any = None
    removed: bool = False


@dataclass(frozen=True, slots=True)
class ScriptEdit:
    """A script with one setting changed: its text, and what it says there now.

    `shown` is the changed line, or the new keyword of `call`. `line` counts from 1.
    """

    text: str
    shown: str
    line: int
    call: str | None = None


def changed_script(path: str, text: str, edit: Edit) -> ScriptEdit:
    """The script with a setting changed, by its name in files.

    Raises:
        ValueError: a setting is no literal, or belongs to a call that is not there.
    """
    script, name = parse(path, text), edit.name
    place = script.places.get(name)
    if edit.removed:
        return _without(text, script, name)
    if place is not None:
        source = text[place.start : place.end]
        if not _is_literal(source, name):
            raise ValueError(f"{name} is {' '.join(source.split())}, no literal")
        new = f"torch.{edit.value}" if source.startswith("torch.") else literal(edit.value)
        return _replaced(text, place.start, place.end, new)
    if any(line.name == name for line in script.unread):
        raise ValueError(f"{name} is an expression")
    return _added(text, script, name, edit.value)


def call_name(call: ast.Call) -> str:
    """What a call calls, without its modules: `TrainingArguments`, `AutoModel.from_pretrained`."""
    parts = name_of(call.func).split(".")
    return ".".join(parts[-2:]) if parts[-1] in ("from_pretrained", "get_peft_model") else parts[-1]


def _replaced(text: str, start: int, end: int, new: str) -> ScriptEdit:
    changed = text[:start] + new + text[end:]
    line = changed.count("\n", 0, start) + 1
    return ScriptEdit(changed, changed.split("\n")[line - 1].strip().rstrip(","), line)


def _call_of(script: Script, head: str) -> tuple[ast.Call, str]:
    """The call that takes a setting, and its dotted keyword there.

    Raises:
        ValueError: there is no such call.
    """
    keyword = _IN_CALLS.get(head, head)
    arguments, model = script.calls.get("arguments"), script.calls.get("model")
    call: ast.Call | None = None
    if head in _OF_MODEL:
        call = model
        if model is None and LOADED_BY_TRL in script.classes:
            call, keyword = arguments, f"model_init_kwargs.{head}"
    elif keyword in _OF_LORA:
        call = script.calls.get("lora")
    elif keyword.startswith(_QUANTIZED):
        unsloth = script.classes & UNSLOTH_CLASSES and keyword.startswith("load_in_")
        call = model if unsloth else script.calls.get("quantization")
    elif arguments is not None and _takes(arguments, head):
        call = arguments
    if call is None:
        raise ValueError(f"the script has no call that takes {keyword}")
    return call, keyword


def _takes(call: ast.Call, head: str) -> bool:
    """Whether the arguments of a trainer have a setting."""
    trl = call_name(call) in CONFIGS
    table = SFT_CONFIG | OBJECTIVES if trl else ARGUMENTS
    listed = head in table.neutral or head in table.reasons
    return listed or any(row.name == head or row.name.startswith(f"{head}.") for row in table.rows)


def _added(text: str, script: Script, name: str, value: Any) -> ScriptEdit:
    head, _, inner = name.partition(".")
    call, keyword = _call_of(script, head)
    head, _, more = keyword.partition(".")
    inner = more or inner
    given = next((argument for argument in call.keywords if argument.arg == head), None)
    source = literal(value)
    if given is not None:
        return _into_dict(text, call, given, inner, source)
    shown = f"{head}={source}" if not inner else f'{head}={{"{inner}": {source}}}'
    return ScriptEdit(with_keyword(text, call, shown), shown, call.lineno, call_name(call))


def _into_dict(
    text: str, call: ast.Call, given: ast.keyword, inner: str, source: str
) -> ScriptEdit:
    """An entry more in the dict that a keyword has."""
    node = given.value
    if not inner or not isinstance(node, ast.Dict) or not node.values:
        raise ValueError(f"{given.arg} is no literal")
    entry = f'"{inner}": {source}'
    end = offset_of(text, node.values[-1], end=True)
    shown = f"{entry} in {given.arg}"
    return ScriptEdit(f"{text[:end]}, {entry}{text[end:]}", shown, node.lineno, call_name(call))


def with_keyword(text: str, call: ast.Call, keyword: str) -> str:
    """The text with one more keyword in a call."""
    last = max(
        (*call.args, *(argument.value for argument in call.keywords)),
        key=lambda node: (node.end_lineno or 0, node.end_col_offset or 0),
        default=None,
    )
    if last is None:
        end = offset_of(text, call, end=True) - 1
        return f"{text[:end]}{keyword}{text[end:]}"
    lines = text.split("\n")
    row, column = (last.end_lineno or 1) - 1, last.end_col_offset or 0
    before = lines[row].encode()[:column].decode()
    rest = lines[row][len(before) :]
    first = min([*(node.lineno for node in call.args), *(node.lineno for node in call.keywords)])
    if first - 1 == row or rest.lstrip(", ").startswith(")"):
        lines[row] = f"{before}, {keyword}{rest}"
    else:
        given = min(
            (argument for argument in call.keywords),
            key=lambda argument: argument.lineno,
            default=None,
        )
        indent = given.col_offset if given is not None else call.args[0].col_offset
        comma = rest if rest.startswith(",") else f",{rest}"
        lines[row : row + 1] = [f"{before}{comma}", f"{' ' * indent}{keyword},"]
    return "\n".join(lines)


def _without(text: str, script: Script, name: str) -> ScriptEdit:
    """The script without the keyword that says a setting."""
    head = name.partition(".")[0]
    keyword = _IN_CALLS.get(head, head)
    calls = [(call, argument) for call in script.calls.values() for argument in call.keywords
             if argument.arg in (head, keyword)]  # fmt: skip
    if not calls or "." in name:
        raise ValueError(f"{name} is no keyword that can be left out")
    call, given = calls[0]
    start, end = offset_of(text, given), offset_of(text, given, end=True)
    rest = text[end:]
    if rest.lstrip().startswith(","):
        end += rest.index(",") + 1
        end += len(text[end:]) - len(text[end:].lstrip(" "))
        line = text.rfind("\n", 0, start) + 1
        if not text[line:start].strip() and text[end : end + 1] == "\n":
            start, end = line, end + 1
    else:  # the last one: the comma before it goes too
        start = len(text[:start].rstrip().removesuffix(","))
    changed, shown = text[:start] + text[end:], f"without {given.arg}"
    return ScriptEdit(changed, shown, given.lineno, call_name(call))


def _is_literal(source: str, name: str) -> bool:
    if name.rpartition(".")[2] in _TORCH and source.startswith("torch."):
        return True
    try:
        ast.literal_eval(source)
    except (ValueError, SyntaxError):
        return False
    return True
