"""Texts and command lines without their secrets, so that they can be kept or sent to a colleague.

A secret is known by its form (what services hand out begins with a mark of theirs), by the name
before it, or by its value. The forms and names are data: `oomdoctor/data/secrets.toml`. The time
grows with the length of a text and no faster: a run of letters is entered at its start only, and
repetitions have a limit.
"""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Sequence
from functools import lru_cache
from itertools import pairwise

from oomdoctor.package_data import data_of

HIDDEN = "(hidden)"
_DATA = data_of("secrets.toml")
_WORDS: dict[str, frozenset[str]] = {
    kind: frozenset(words.split()) for kind, words in _DATA["names"].items()
}
_FORMS = re.compile(rf"(?<![A-Za-z0-9])(?:{'|'.join(_DATA['formats'].values())})(?![A-Za-z0-9])")
# What looks like a digest is one of these only behind the service's name.
_DIGEST_KEY = re.compile(r"(?i)(wandb[^\n]{0,60}?(?<![0-9a-z]))[0-9a-f]{40}(?![0-9a-z])")

# user:password@ of an address, where a password may have slashes and a port is no password.
_PASSWORD = re.compile(r"(?<=://)[^\s/@:'\"<>]{0,200}:(?!\d{1,5}(?:[/?#]|$))[^\s@'\"<>]{1,300}@")
_USERINFO = re.compile(r"(?<=://)(?!git@)[^/@\s'\"<>]{1,300}@")

_BEGIN = re.compile(r"-----BEGIN [A-Z ]{0,40}PRIVATE KEY(?: BLOCK)?-----")
_BODY = re.compile(r"(?:(?:\\[nr]|[\s\"',+])*[A-Za-z0-9+/=]{32,}){0,200}")
_LONGEST_KEY = 20_000  # characters

_QUOTES = r"[\\\"'`]{0,6}"
_SCHEME = r"(?:(?:Bearer|Basic|Digest|Token|ApiKey|Negotiate)\s{1,3})?"
# name: value, name=value, 'name': "value", environ["NAME"] = 'value', \"name\": \"value\"
_NAMED = re.compile(
    r"(?i)(?:(?P<query>[?&])|(?<![\w.-]))(?P<option>-{1,2})?"
    rf"(?P<name>(?:[a-z]{{2,20}} (?=key|token))?[\w.-]{{2,200}})[\\\"'`\])]{{0,7}}"
    rf"[ \t]{{0,8}}(?:=>|:=|[:=])[ \t]{{0,8}}(?:[brf](?=[\"']))?{_QUOTES}{_SCHEME}"
)
# --name value, '--name', 'value', setenv NAME value, setdefault("NAME", "value"), and of a netrc:
# login user password value
_OPTION = re.compile(
    r"(?i)(?<![\w-])(?:(?P<option>-{1,2})|setenv[ \t]{1,4}|login[ \t]{1,4}\S{1,100}\s{1,8}"
    r"|(?<=[\"'])(?=(?-i:[A-Z][A-Z0-9_]{2,60}[\"'],)))"
    rf"(?P<name>[a-z][\w.-]{{1,100}})(?:{_QUOTES},?[ \t]{{1,4}}{_QUOTES}|{_QUOTES},{_QUOTES})(?!-)"
    r"(?![\w.-]{1,60}[\"']\s{0,4}:)"
)
# A name and a value that have names themselves: {"name": "WANDB_API_KEY", "value": "X"}, in YAML
# too, and variable "db_password" { default = "X"
_PAIR = re.compile(
    rf"(?i)(?<![\w-])(?:(?:name|key){_QUOTES}[ \t]{{0,4}}[:=]|variable)[ \t]{{0,4}}{_QUOTES}"
    rf"(?P<name>[\w.-]{{2,200}}){_QUOTES},?\s{{1,40}}(?:\{{\s{{0,40}})?{_QUOTES}(?:value|default)"
    rf"{_QUOTES}[ \t]{{0,4}}[:=][ \t]{{0,4}}{_QUOTES}"
)
# A name and what looks random behind it: api key X, secret_key X, (b"authorization", b"Bearer X")
_LOOSE = re.compile(
    r"(?i)(?<![\w.-])(?P<name>(?:[a-z]{2,20} (?=key|token))?[a-z][\w-]{1,100})"
    rf"{_QUOTES},?[ \t]{{1,4}}(?:[brf](?=[\"']))?{_QUOTES}{_SCHEME}(?P<loose>)"
)
# Quoted, or up to what cannot be in a value; the first part of it is what is looked at.
_VALUE = r"(?<=[\"'`])[^\"'`\\\n]{1,%s}|[^\s\"'`,;&)}\]|<>\\]{1,%s}"
_FIRST_PART = re.compile(_VALUE % (200, 200))
_WHOLE = re.compile(_VALUE % ("", ""))
_COMMANDS = re.compile(rf"((?<![\w.-])(?:{'|'.join(_DATA['commands'].values())}))[^\s\"']{{1,300}}")
_COOKIES = re.compile(r"(?i)(?<![\w-])((?:set-)?cookie[\"']?:\s{0,4}[\"']?)[^\n\"']{1,4096}")

_PARTS = re.compile(r"[A-Z]{2,}(?![a-z])|[A-Z]?[a-z]+|[A-Z]|\d+")
# What stands behind such a name and is no secret: a switch, a type, a call, a place holder.
_PLAIN = re.compile(
    r"(?i)(?:true|false|none|null|nil|yes|no|not|on|off|n/?a|unset|set|inherit|missing|invalid|required|empty"
    r"|given|unknown|default|str|bytes|string|int|any|optional|expired|failed|ok|error|undefined|found"
    r"|loaded|ignored|your[\w-]*|x{3,}|\W+|\(hidden\)?|\[\w+\]?|<[^>]*>?|(?-i:\$[A-Z][A-Z0-9_]*)"
    r"|\$\{(?:\w+\.\w+:)?\w+(?::?\?.*|\})?|\?[a-z]+|%\w+%|\{\w+\}?)[.:!?]?"
)
# The same without quotes: a call, an attribute, a type with parameters.
_CODE = re.compile(r"[\w.]+[(\[]\w*|(?:self|args|config|cfg|os)\.[\w.]+|\$\(\w*")
_NUMBER = re.compile(r"[-+]?\d{1,8}(?:\.\d{0,8})?(?:e[-+]?\d{1,3})?%?")
_FOLDER = re.compile(r"(?:~|\.{1,2})?/.*")
_FILE = re.compile(r"(?:~|\.{1,2})?/[\w./-]*\.[a-z]{2,4}")
_WORD_OF_A_SENTENCE = re.compile(r"(?<= )[A-Z]?[a-z]+(?= [a-z(\"'])")
_UUID = re.compile(r"(?i)(?:[a-z]{2,4}-)?[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}")
_DIGEST = re.compile(r"(?:[A-Za-z]{1,12}[-_:])*(?:[0-9a-f]{32,}|[0-9A-F]{32,})")
_TWO_WORDS = re.compile(r"[a-z]{3,}[._/-][A-Z]?[a-z]{3,}")


def is_secret(name: str, value: str) -> bool:
    """Whether a variable of the environment is one: by its name, its form, or as it looks random.

    A value without a telling name looks so with 24 or more letters of both cases and digits.
    Digests in hexadecimal and the identifiers of GPUs do not.
    """
    kinds = (str.isupper, str.islower, str.isdigit)
    random = _drawn(value, 24) and all(any(map(kind, value)) for kind in kinds)
    strength = _strength(name)
    if random or _FORMS.fullmatch(value):
        return True
    if strength == "secret":
        return not _is_path(name, value)
    # Of a GH_PAT or MY_PASS, a single word, a number and a path are not kept from others.
    plain = re.fullmatch(r"[A-Za-z]*|[\d.]*|(?:~|\.{1,2})?/.*", value) or _DIGEST.fullmatch(value)
    return strength == "perhaps" and len(value) >= 8 and not plain


def without_secrets(command: Sequence[str]) -> tuple[str, ...]:
    """The words of a command, with the values of secrets replaced.

    Hidden are: the value of an option whose name says so (`--hf_token=X`, `--api-key X`,
    `TOKEN=X`), also inside a longer word; user names and passwords in addresses; and words with the
    marks of well-known services, such as hf_.
    """
    shown: list[str] = []
    name = ""
    for word in command:
        hidden = name and not word.startswith("-") and _is_secret(name, word, option=True)
        shown.append(HIDDEN if hidden else text_without_secrets(word))
        name = word.lstrip("-") if word.startswith("-") else ""
    return tuple(shown)


def text_without_secrets(text: str) -> str:
    """A text without the values of secrets that a name, a form or an address tells."""
    text = _without_private_keys(text)
    text = _PASSWORD.sub(f"{HIDDEN}@", text)
    text = _USERINFO.sub(f"{HIDDEN}@", text)
    text = _COOKIES.sub(rf"\1{HIDDEN}", text)
    text = _FORMS.sub(HIDDEN, text)
    text = _DIGEST_KEY.sub(rf"\1{HIDDEN}", text)
    text = _COMMANDS.sub(rf"\1{HIDDEN}", text)
    for pattern in (_PAIR, _OPTION, _NAMED, _LOOSE):
        text = _without_named(text, pattern)
    return text


def _without_private_keys(text: str) -> str:
    """Without the blocks of private keys, whole or cut."""
    kept: list[str] = []
    at = 0
    for begin in _BEGIN.finditer(text):
        if begin.start() < at:
            continue
        end = text.find("-----END", begin.end(), begin.end() + _LONGEST_KEY)
        body = _BODY.match(text, begin.end())
        stop = text.find("-----", end + 8) + 5 if end >= 0 else 0
        kept += [text[at : begin.start()], HIDDEN]
        at = max(stop, body.end() if body else begin.end())
    return "".join(kept) + text[at:]


def _without_named(text: str, pattern: re.Pattern[str]) -> str:
    """Without what stands behind the names of secrets; `pattern` reads a name up to its value."""
    kept: list[str] = []
    at = 0
    for match in pattern.finditer(text):
        strength = _strength(match["name"])
        if match.start() < at or strength is None:
            continue
        value = _FIRST_PART.match(text, match.end())
        groups = match.groupdict()
        option = groups.get("option") is not None
        if value is None or (not option and _WORD_OF_A_SENTENCE.match(text, match.end())):
            continue
        if groups.get("loose") is not None and not (strength == "secret" and _drawn(value[0], 12)):
            continue
        if value[0].endswith(":") and _strength(value[0][:-1]):  # a name itself
            continue
        quoted = match[0][-1] in "\"'`" or bool(groups.get("query"))
        if _is_secret(match["name"], value[0], option, quoted):
            whole = _WHOLE.match(text, match.end()) or value
            kept += [text[at : whole.start()], HIDDEN]
            at = whole.end()
    return "".join(kept) + text[at:]


def _is_secret(name: str, value: str, option: bool = False, quoted: bool = False) -> bool:
    """Whether the value behind a name is a secret; `option` is whether the name is one's."""
    strength = _strength(name)
    in_code = not quoted and not option
    if strength is None or _PLAIN.fullmatch(value) or (in_code and _CODE.fullmatch(value)):
        return False
    if strength == "secret":
        return not _is_path(name, value)
    if option and len(_parts(name)) == 1:
        return not _NUMBER.fullmatch(value)
    return _drawn(value, 12) and (quoted or not _DIGEST.fullmatch(value))


def _is_path(name: str, value: str) -> bool:
    """Whether it is a file, or a folder in PWD or OLDPWD, which shells set."""
    folder = name.lower() in ("pwd", "oldpwd") and _FOLDER.match(value)
    return bool(folder or _FILE.fullmatch(value))


def _drawn(value: str, least: int) -> bool:
    """Whether a value has no words in it, but letters and digits as if drawn at random."""
    return (
        len(value) >= least
        and re.fullmatch(r"[A-Za-z0-9+/=_~%-]+", value) is not None
        and any(map(str.isalpha, value))
        and (sum(map(str.isdigit, value)) >= 2 or _changes(value) >= len(value) / 4)
        and not _TWO_WORDS.search(value)
        and not _UUID.fullmatch(value)
        and _entropy(value) >= 3
    )


def _changes(value: str) -> int:
    """How often small and capital letters follow each other, and digits and letters."""
    kinds = [(letter.isdigit(), letter.isupper()) for letter in value]
    return sum(left != right for left, right in pairwise(kinds))


def _parts(name: str) -> list[str]:
    """The words of a name: those of WANDB_API_KEY, private-key and authToken."""
    return [part.lower() for part in _PARTS.findall(name)]


@lru_cache(4096)
def _strength(name: str) -> str | None:
    """`secret` if a value behind this name is one, `perhaps` if only a random one is, else None."""
    parts = _parts(name)
    if parts[-2:] == ["key", "id"]:  # of an access key
        parts.pop()
    if not parts or parts[-1] in _WORDS["no_value"]:
        return None
    words = (*parts, "".join(parts))
    if any(
        secret == word or (len(word) > 4 and secret.endswith(word))
        for secret in words
        for word in _WORDS["secret"]
    ):
        return "secret"
    *_, before, last = ["", *parts]
    for word in ("key", "token", "pass", "pw"):
        befores = _WORDS[f"before_{word}"]
        if last == word and before in befores:
            return "secret"
        if last != word and last.endswith(word) and last.removesuffix(word) in befores:
            return "secret"
    if last == "key" and before in _WORDS["before_other_key"]:
        return None
    return "perhaps" if last in _WORDS["perhaps"] else None


def _entropy(value: str) -> float:
    """Bits of a character."""
    counts = Counter(value).values()
    return -sum(n / len(value) * math.log2(n / len(value)) for n in counts)
