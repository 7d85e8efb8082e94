r"""Text of others in a file that is written: no terminal or editor acts on it.

YAML and Python read the same escapes in double quotes: `\n`, `\u202e`, `\U000e0001`.
"""

from __future__ import annotations

import json


def quoted(text: str) -> str:
    """The text in double quotes, with escapes for non-printable characters."""
    return "".join(map(_escaped, json.dumps(text, ensure_ascii=False)))


def printable(text: str) -> str:
    """The text for a comment: one line, with spaces for non-printable characters."""
    return "".join(character if character.isprintable() else " " for character in text)


def _escaped(character: str) -> str:
    if character.isprintable():
        return character
    code = ord(character)
    return f"\\u{code:04x}" if code <= 0xFFFF else f"\\U{code:08x}"
