"""Parses TOML that somebody else may have written."""

from __future__ import annotations

import re
import tomllib
from typing import Any

MOST_PARTS = 200
"""Of one dotted key; tomllib takes time with their square."""
STRING_OR_COMMENT = (
    r'"""(?:[^"\\]|\\.|"(?!""))*+"{0,5}|'
    r"'''(?:[^']|'(?!''))*+'{0,5}|"
    r'"(?:[^"\\\n]|\\[^\n])*+"?|'
    r"'[^'\n]*+'?|"
    r"#[^\n]*+"
)
"""A pattern for `re.DOTALL`. What is never closed reaches to the end: nothing is read twice."""
_STRINGS_AND_COMMENTS = re.compile(STRING_OR_COMMENT, re.DOTALL)
_NO_KEY = re.compile(r"[^\w.\- \t]")


def toml_of(text: str) -> dict[str, Any]:
    """The content of a TOML text.

    Raises:
        ValueError: it is not TOML, or a key has too many parts.
        RecursionError: it is nested too deeply.
    """
    bare = _STRINGS_AND_COMMENTS.sub(lambda match: "" if match[0].startswith("#") else "s", text)
    if any(run.count(".") >= MOST_PARTS for run in _NO_KEY.split(bare)):
        raise ValueError(f"a key has more than {MOST_PARTS} parts")
    return tomllib.loads(text)
