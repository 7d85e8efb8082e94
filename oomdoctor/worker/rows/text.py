"""The text that a model is trained on, from a row of a data set in one of the usual shapes.

Trainers differ in what they put between the parts; that moves a length by a few tokens.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

Messages = list[dict[str, Any]]
Template = Callable[[Messages, Any], str]

_TEXT = "text"
_CONVERSATIONS = ("messages", "conversations")
# Fields that are joined, those of them that have to be there, and what is put in between.
_JOINED = (
    (("prompt", "completion"), 2, ""),  # as TRL joins them
    (("instruction", "input", "output"), 1, "\n"),
    (("instruction", "context", "response"), 1, "\n"),
)
_ROLES = {"human": "user", "gpt": "assistant"}  # the words of ShareGPT


class NoTextError(Exception):
    """A row has no text to train on; the message says what it lacks."""


@dataclass(frozen=True, slots=True)
class RowText:
    """A row's text and where it came from; `special` is whether the tokenizer adds its own."""

    text: str
    source: str
    special: bool = True


def text_of(value: Any, field: str | None, template: Template | None) -> RowText:
    """The text of a row, of `field` alone where it is given.

    `template` writes a conversation as the tokenizer's chat template does; without one the
    contents are joined.

    Raises:
        NoTextError: there is none.
    """
    found = _found(value, field, template)
    try:
        found.text.encode()
    except UnicodeEncodeError:
        raise NoTextError("its text is not UTF-8") from None
    return found


def _found(value: Any, field: str | None, template: Template | None) -> RowText:
    if isinstance(value, str):  # a line of text
        return RowText(value, "lines")
    if not isinstance(value, Mapping):
        raise NoTextError(f"is {_kind(value)}, not an object with fields")
    if field is not None:
        if value.get(field) is None:
            raise NoTextError(f"has no {field!r}, but {_fields(value)}")
        return _of_field(value, field, template)
    for name in (_TEXT, *_CONVERSATIONS):
        if value.get(name) is not None:
            return _of_field(value, name, template)
    for names, needed, between in _JOINED:
        parts: list[Any] = [value.get(name) for name in names]
        if any(part is None for part in (*parts[:needed], parts[-1])):
            continue
        if names[0] == "prompt" and all(isinstance(part, list) for part in parts):
            return _conversation([*parts[0], *parts[1]], value, "prompt + completion", template)
        if all(isinstance(part, str) for part in parts if part is not None):
            return RowText(between.join(filter(None, parts)), " + ".join(names))
    raise NoTextError(
        f"has {_fields(value)}: none with a text that is known; name one by --text-field"
    )


def _of_field(value: Mapping[str, Any], name: str, template: Template | None) -> RowText:
    found = value[name]
    if isinstance(found, str):
        return RowText(found, name)
    if isinstance(found, list):
        return _conversation(found, value, name, template)
    raise NoTextError(f"its {name!r} is {_kind(found)}, neither a text nor messages")


def _conversation(
    turns: list[Any], row: Mapping[str, Any], name: str, template: Template | None
) -> RowText:
    messages = [_message(turn) for turn in turns]
    if template is None:
        joined = "\n".join(_content(message["content"]) for message in messages)
        return RowText(joined, f"{name}, contents joined")
    try:
        text = template(messages, row.get("tools"))
    except Exception as error:  # noqa: BLE001  (a template is a program of the model's authors)
        raise NoTextError(f"the chat template refuses it: {error}") from None
    return RowText(text, f"{name} by the chat template", special=False)


def _message(turn: Any) -> dict[str, Any]:
    """A turn in the words of chat templates, from those or from ShareGPT's `from` and `value`."""
    if not isinstance(turn, Mapping):
        raise NoTextError(f"a message is {_kind(turn)}, not an object")
    if "from" in turn and "value" in turn:
        role = str(turn["from"])
        return {"role": _ROLES.get(role, role), "content": turn["value"]}
    if "role" not in turn:
        raise NoTextError("a message has no role")
    return {"content": "", **turn}


def _content(content: Any) -> str:
    """The text of a message's content; of a list of parts those that are text."""
    if isinstance(content, list):
        texts = [part.get("text") for part in content if isinstance(part, Mapping)]
        return "\n".join(text for text in texts if isinstance(text, str))
    return content if isinstance(content, str) else ""


def _fields(value: Mapping[str, Any]) -> str:
    return ", ".join(map(str, value)) or "no field"


def _kind(value: Any) -> str:
    return "null" if value is None else f"a {type(value).__name__}"
