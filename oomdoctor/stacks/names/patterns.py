"""The last names of the modules that a regular expression matches, such as q_proj and v_proj."""

from __future__ import annotations

import re
from collections.abc import Iterable
from re import _parser  # type: ignore[attr-defined]  # no public parser of expressions exists
from typing import Any

_MOST = 64
_WORDS_OF_LANGUAGE = ("language_model", "text_model")


def names_of(pattern: str) -> tuple[str, ...] | None:
    """The names behind the last dot, in their order; None if the end of the pattern is open."""
    try:
        tails = list(dict.fromkeys(_tails([""], _parser.parse(pattern))))
    except (re.error, OverflowError, RecursionError, ValueError):
        return None
    found = [tail.rpartition(".")[2] for tail in tails]
    if not found or any(re.fullmatch(r"[^\W_]\w*", one) is None for one in found):
        return None
    return tuple(dict.fromkeys(found))


def of_language(pattern: str) -> bool:
    """Whether a pattern is for the language model alone, not for the vision encoder beside it."""
    return any(word in pattern for word in _WORDS_OF_LANGUAGE) and not re.search(
        r"vis(ion|ual)", pattern
    )


def _tails(heads: list[str], tokens: Iterable[tuple[Any, Any]]) -> list[str]:
    """What follows each head; anything but letters counts as a dot, and only the end is kept."""
    for operator, argument in tokens:
        parts = _parts(str(operator), argument)
        if parts is None:
            continue
        heads = [(head + part).rpartition(".")[2] if "." in part else head + part
                 for head in heads for part in parts]  # fmt: skip
        heads = list(dict.fromkeys(heads))
        if len(heads) > _MOST:
            raise ValueError("too many names")
    return heads


def _parts(operator: str, argument: Any) -> list[str] | None:
    """The texts that a token stands for; None for one that matches no text."""
    if operator == "LITERAL":
        return [chr(argument)]
    if operator in ("SUBPATTERN", "ATOMIC_GROUP"):
        return _tails([""], argument[-1] if operator == "SUBPATTERN" else argument)
    if operator == "BRANCH":
        return [one for branch in argument[1] for one in _tails([""], branch)]
    if operator == "IN" and all(str(kind) == "LITERAL" for kind, _ in argument):
        return [chr(code) for _, code in argument]
    if operator == "MAX_REPEAT" and argument[:2] == (0, 1):  # (...)?
        return ["", *_tails([""], argument[2])]
    if operator in ("AT", "ASSERT", "ASSERT_NOT"):
        return None
    return ["."]
