r"""Text of others in a file that is written: no terminal or editor acts on it.

YAML and Python read the same escapes in double quotes: `\n`, `\u202e`, `\U000e0001`.
"""

from __future__ import annotations

import json


def quoted(text: str) -> str:
    """The text in double quotes, with escapes for characters that have no shape."""
    return "".join(map(_shown, json.dumps(text, ensure_ascii=False)))


def printable(text: str) -> str:
    """The text for a comment: one line, with spaces for characters that have no shape."""
    return "".join(sign if sign.isprintable() else " " for sign in text)


def _shown(sign: str) -> str:
    if sign.isprintable():
        return sign
    code = ord(sign)
    return f"\\u{code:04x}" if code <= 0xFFFF else f"\\U{code:08x}"
