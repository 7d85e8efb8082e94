"""A command line without its secrets, so that it can be written down or sent to a colleague."""

from __future__ import annotations

import re
from collections.abc import Sequence

HIDDEN = "(hidden)"
_NAME = (
    r"[\w.-]*(?:token|secret|passwo?r?d|passwd|api[_-]?key|access[_-]?key|credential|auth)[\w.-]*"
)
_GIVEN = re.compile(rf"(?i)^((?:-{{1,2}}|\+{{0,2}})?{_NAME}[=:])(.+)$", re.DOTALL)
_OPTION = re.compile(rf"(?i)^-{{1,2}}{_NAME}$")
_INSIDE = re.compile(rf"(?i)\b({_NAME}\s*[=:]\s*[\"']?)([^\s\"',;&]+)")
_USERINFO = re.compile(r"(?<=://)[^/@\s]*@")
# What services hand out begins with a mark of theirs, whatever the option is called.
_MARKED = re.compile(
    r"\b(?:hf_[A-Za-z0-9]{16,}|sk-[A-Za-z0-9_-]{16,}|gh[pousr]_[A-Za-z0-9]{20,}"
    r"|github_pat_\w{20,}|AKIA[A-Z0-9]{12,}|xox[abprs]-[A-Za-z0-9-]{10,}|eyJ[\w-]{10,}\.[\w.-]{10,}"
    r"|[0-9a-f]{40})\b"
)
# Names of numbers and files that a training has, which look like those of secrets.
_PLAIN = re.compile(
    r"(?i)tokens|tokeniz|token_?(?:id|type|len|size|dim|count|budget|limit|drop|ratio)"
    r"|(?:num|max|min|pad|eos|bos|unk|mask|sep|cls|special|stop|image|per)[_-]?\w*token"
    r"|author|authority"
)


def without_secrets(command: Sequence[str]) -> tuple[str, ...]:
    """The words of a command, with the values of secrets replaced.

    Hidden are: the value of an option whose name says so (`--hf_token=X`, `--api-key X`,
    `TOKEN=X`), also inside a longer word; user names and passwords in addresses; and words with the
    marks of well-known services, such as hf_.
    """
    found: list[str] = []
    hide_next = False
    for word in command:
        if hide_next and not word.startswith("-"):
            found.append(HIDDEN)
            hide_next = False
            continue
        given = _GIVEN.match(word)
        hide_next = bool(_OPTION.match(word)) and not _PLAIN.search(word)
        if given and not _PLAIN.search(given[1]):
            found.append(given[1] + HIDDEN)
        else:
            found.append(text_without_secrets(word))
    return tuple(found)


def text_without_secrets(word: str) -> str:
    """A text, with the values of secrets replaced that can be seen by a name or a mark."""
    word = _USERINFO.sub(f"{HIDDEN}@", word)
    word = _MARKED.sub(HIDDEN, word)
    return _INSIDE.sub(lambda m: m[0] if _PLAIN.search(m[1]) else m[1] + HIDDEN, word)
