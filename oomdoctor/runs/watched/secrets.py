"""What must never be written into a file that may be sent to somebody: tokens, passwords, keys.

Secrets are known by their value (from the environment, the files of tokens and the command), by the
name before them, and by the marks of well-known services.
"""

from __future__ import annotations

import json
import mmap
import netrc
import os
import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import quote

from oomdoctor.analysis.secrets import HIDDEN, text_without_secrets, without_secrets
from oomdoctor.system.environment import all_variables, hf_home, home

# Words of a variable's name, as in AWS_SECRET_ACCESS_KEY; TOKENIZERS is not one.
_NAMES = re.compile(
    r"(?i)(?:^|_)(?:\w*tokens?|secrets?|pass(?:word|wd|phrase)?|\w*keys?|credentials?|auth|cookies?"
    r"|pat|dsn)(?=_|$)"
)
_LEAST = 6  # characters; shorter values are in every text
_PLAIN = re.compile(r"(?i)true|false|none|null|yes|no|\d{1,8}")


@dataclass(frozen=True, slots=True)
class Secrets:
    """The values that are known to be secret, the longest first."""

    values: tuple[str, ...]

    def out_of(self, text: str) -> str:
        """The text without them."""
        for value in self.values:
            text = text.replace(value, HIDDEN)
        return text_without_secrets(text)

    def out_of_document(self, document: Any) -> Any:
        """A JSON document, with the same keys, without them in any of its texts.

        A list of texts is read as the words of a command too, where an option names what follows.
        """
        if isinstance(document, str):
            return self.out_of(document)
        if isinstance(document, Mapping):
            return {key: self.out_of_document(value) for key, value in document.items()}
        if isinstance(document, list):
            if document and all(isinstance(one, str) for one in document):
                document = list(without_secrets(document))
            return [self.out_of_document(one) for one in document]
        return document

    def blot_out(self, path: Path) -> None:
        """Overwrite them in a file, which keeps its length; for files that are not text.

        Raises:
            OSError: the file cannot be changed.
        """
        if not path.stat().st_size:
            return
        with path.open("r+b") as file, mmap.mmap(file.fileno(), 0) as content:
            for value in self.values:
                word = value.encode()
                at = content.find(word)
                while at >= 0:
                    content[at : at + len(word)] = b"x" * len(word)
                    at = content.find(word, at + len(word))


def known_secrets(command: Sequence[str] = ()) -> Secrets:
    """The secrets of this environment, and those that a command names."""
    found: set[str] = set()
    for value in (*_of_variables(), *_of_files(), *_of_command(command)):
        parts = [value, *(line for line in value.splitlines() if len(line) >= 16)]  # a private key
        found |= {part.strip() for part in parts}
    plain = {one for one in found if len(one) >= _LEAST and not _PLAIN.fullmatch(one)}
    spelled = {json.dumps(one)[1:-1] for one in plain} | {quote(one, safe="") for one in plain}
    return Secrets(tuple(sorted(plain | spelled, key=len, reverse=True)))


def _of_variables() -> Iterator[str]:
    for name, value in all_variables().items():
        if _NAMES.search(name):
            yield value


def _of_files() -> Iterator[str]:
    """The saved tokens of Hugging Face, and the passwords of netrc, where W&B keeps its key."""
    given = all_variables().get("HF_TOKEN_PATH")
    for path in (Path(given).expanduser() if given else hf_home() / "token",):
        with suppress(OSError, UnicodeDecodeError):
            yield path.read_text(encoding="utf-8")
    with suppress(OSError, netrc.NetrcParseError, UnicodeDecodeError):
        hosts = netrc.netrc(os.fspath(home() / ".netrc")).hosts.values()
        yield from (password for _, _, password in hosts if password)


def _of_command(command: Sequence[str]) -> Iterator[str]:
    """The words, or the ends of words, that are hidden in a command."""
    for word, shown in zip(command, without_secrets(command), strict=True):
        if shown == HIDDEN:
            yield word
        elif shown.endswith(HIDDEN) and word.startswith(shown.removesuffix(HIDDEN)):
            yield word.removeprefix(shown.removesuffix(HIDDEN))
