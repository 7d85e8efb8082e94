"""Get the training text from a row of a data set in one of the common formats.

Trainers differ in what they put between the parts, which changes a length by a few tokens.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

Messages = list[dict[str, object]]
Template = Callable[[Messages, object], str]

_TEXT = "text"
_CONVERSATIONS = ("messages", "conversations")
# Fields to join, how many of them are required, and the separator.
_JOINED = (
    (("prompt", "completion"), 2, ""),  # as TRL joins them
    (("instruction", "input", "output"), 1, "\n"),
    (("instruction", "context", "response"), 1, "\n"),
)
_ROLES = {"human": "user", "gpt": "assistant"}  # ShareGPT's names


class NoTextError(Exception):
    """A row has no text to train on; the message says what is missing."""


@dataclass(frozen=True, slots=True)
class RowText:
    """A row's text and its source; `special` is whether the tokenizer adds special tokens."""

    text: str
    source: str
    special: bool = True


def text_of(value: object, field: str | None, template: Template | None) -> RowText:
    """The text of a row, or of its `field` if one is given.

    `template` formats a conversation with the tokenizer's chat template. Without one, the contents
    of the messages are joined.

    Raises:
        NoTextError: the row has no text.
    """
    row_text = _found(value, field, template)
    try:
        row_text.text.encode()
    except UnicodeEncodeError:
        raise NoTextError("has text that is not UTF-8") from None
    return row_text


def _found(value: object, field: str | None, template: Template | None) -> RowText:
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
        parts = [value.get(name) for name in names]
        if any(part is None for part in (*parts[:needed], parts[-1])):
            continue
        turns = [part for part in parts if isinstance(part, list)]
        if names[0] == "prompt" and len(turns) == len(parts):
            return _conversation([*turns[0], *turns[1]], value, "prompt + completion", template)
        texts = [part for part in parts if isinstance(part, str)]
        if len(texts) == sum(part is not None for part in parts):
            return RowText(between.join(filter(None, texts)), " + ".join(names))
    raise NoTextError(f"has {_fields(value)}, but no known text field; name one with --text-field")


def _of_field(value: Mapping[str, object], name: str, template: Template | None) -> RowText:
    content = value[name]
    if isinstance(content, str):
        return RowText(content, name)
    if isinstance(content, list):
        return _conversation(content, value, name, template)
    raise NoTextError(f"has {_kind(content)} in {name!r}, not text or messages")


def _conversation(
    turns: list[object], row: Mapping[str, object], name: str, template: Template | None
) -> RowText:
    messages = [_message(turn) for turn in turns]
    if template is None:
        joined = "\n".join(_content(message["content"]) for message in messages)
        return RowText(joined, f"{name}, contents joined")
    try:
        text = template(messages, row.get("tools"))
    except Exception as error:  # noqa: BLE001  (a template is code by the model's authors)
        raise NoTextError(f"was rejected by the chat template: {error}") from None
    return RowText(text, f"{name} by the chat template", special=False)


def _message(turn: object) -> dict[str, object]:
    """A turn with the keys of chat templates, also from ShareGPT's `from` and `value`."""
    if not isinstance(turn, Mapping):
        raise NoTextError(f"has a message that is {_kind(turn)}, not an object")
    if "from" in turn and "value" in turn:
        role = str(turn["from"])
        return {"role": _ROLES.get(role, role), "content": turn["value"]}
    if "role" not in turn:
        raise NoTextError("has a message without a role")
    return {"content": "", **turn}


def _content(content: object) -> str:
    """The text of a message's content; from a list of parts, the text parts."""
    if isinstance(content, list):
        texts = [part.get("text") for part in content if isinstance(part, Mapping)]
        return "\n".join(text for text in texts if isinstance(text, str))
    return content if isinstance(content, str) else ""


def _fields(value: Mapping[str, object]) -> str:
    return ", ".join(map(str, value)) or "no fields"


def _kind(value: object) -> str:
    if value is None:
        return "null"
    name = type(value).__name__
    return f"an {name}" if name == "int" else f"a {name}"
