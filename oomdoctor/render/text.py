"""Text from elsewhere made safe for a terminal, lines broken to a width, and colors of outcomes.

Model ids, labels, log tails and messages come from files, the hub and other processes. A control
character in them could move the cursor, set the window title or write the clipboard. So renderers
pass every string through `one_line` or `log_lines`, and never parse text as markup. The words of an
outcome always stand beside its color, so color alone says nothing.
"""

from __future__ import annotations

import re
import textwrap
import unicodedata
from base64 import b64encode
from hashlib import sha256

# Whole ECMA-48 sequences, so that the colours of a log disappear. A sequence without its end does
# not match; its escape character is made visible instead.
_SEQUENCE = re.compile(
    r"(?:\x1b\]|\x9d)[^\x07\x1b\x9c]*(?:\x07|\x1b\\|\x9c)"  # OSC: title, clipboard, links
    r"|(?:\x1b[PX^_]|[\x90\x98\x9e\x9f])[^\x1b\x9c]*(?:\x1b\\|\x9c)"  # DCS, SOS, PM, APC
    r"|(?:\x1b\[|\x9b)[0-?]*[ -/]*[@-~]"  # CSI: colours, cursor
    r"|\x1b[ -/]+[0-~]"  # character sets
)
# Control, format (bidirectional overrides, zero width), surrogate, line and paragraph separators.
# Lines do not break inside `1.50 GiB`, `6 min 53 s`, `4 x 8` or `torch 2.7.1`.
_GLUE = re.compile(
    r"(?<=\d) (?=(?:[KMGT]iB|B|ms|s|min|h|d|tokens/s)\b)"
    r"|(?<=\d min) (?=\d)|(?<=\d h) (?=\d)|(?<=\d d) (?=\d)"
    r"|(?<=\d) (?=x \d)|(?<=\d x) (?=\d)|(?<=\w) (?=\d+\.\d+\.)"
)
_QUOTED = re.compile(r"\"[^\"]*\"|'[^']*'")
_BETWEEN = re.compile(r"(?<![,;]) ")
_NO_BREAK = "\xa0"  # textwrap does not break here, and `one_line` has removed it from the text
_CONTROLS = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f]")
_UNSAFE_CATEGORIES = frozenset({"Cc", "Cf", "Cs", "Zl", "Zp"})


def escape(text: str) -> str:
    r"""The text with every control or invisible character written out, such as `\x1b`."""
    if text.isascii() and text.isprintable():
        return text
    return "".join(map(_visible, text))


def readable(document: str) -> str:
    r"""A document with its control characters, except line breaks and tabs, written out."""
    return _CONTROLS.sub(lambda match: _visible(match[0]), document)


def one_line(text: str) -> str:
    """The text on one line: no sequences, single spaces, control characters made visible."""
    return escape(" ".join(_SEQUENCE.sub("", text).split()))


def log_lines(text: str, limit: int = 40) -> tuple[str, ...]:
    """The last `limit` lines of a program's output, safe to print, with their indentation.

    A line that carriage returns overwrote (a progress bar) is shown in its last state.
    """
    lines = []
    for line in _SEQUENCE.sub("", text).replace("\r\n", "\n").split("\n"):
        states = [state for state in line.split("\r") if state.strip()]
        lines.append(escape(states[-1].expandtabs(4)).rstrip() if states else "")
    while lines and not lines[-1]:
        lines.pop()
    while lines and not lines[0]:
        lines.pop(0)
    return tuple(lines[-limit:])


def wrap(text: str, width: int, first: str = "", rest: str = "") -> list[str]:
    """The text in lines of at most `width` characters; a longer word is kept whole."""
    lines = textwrap.wrap(
        _GLUE.sub(_NO_BREAK, text),
        max(width, len(rest) + 16),
        initial_indent=first,
        subsequent_indent=rest,
        break_long_words=False,
        break_on_hyphens=False,
    )
    return [line.replace(_NO_BREAK, " ") for line in lines]


def wrap_code(line: str, width: int, first: str, *, shell: bool = False) -> list[str]:
    """A line of code in lines of at most `width`: broken between words, never inside quotes.

    It breaks after commas if it has any. A comment that does not fit goes below. With `shell` a
    broken line ends with a backslash.
    """
    indent = " " * len(first)
    if len(first) + len(line) <= width:
        return [first + line]
    code, mark, comment = line.partition("  # ")
    if mark and code.strip():
        below = wrap(comment, width, f"{indent}# ", f"{indent}# ")
        return [*wrap_code(code, width, first, shell=shell), *below]
    kept = _QUOTED.sub(lambda match: match[0].replace(" ", _NO_BREAK), line)
    arguments = _BETWEEN.sub(_NO_BREAK, kept)
    room, (call, opened, inside) = width - len(first) - 4, arguments.partition("(")
    if opened and _longest(arguments) > room >= _longest(inside):
        return [first + call + opened, *wrap(inside, width, f"{indent}    ", f"{indent}    ")]
    end = " \\" if shell else ""
    kept = arguments if _longest(arguments) <= room else kept
    lines = wrap(kept, width - len(end), first, f"{indent}    ")
    return [*(part + end for part in lines[:-1]), *lines[-1:]]


def _longest(code: str) -> int:
    return max(map(len, code.split(" ")))


def _visible(character: str) -> str:
    if unicodedata.category(character) not in _UNSAFE_CATEGORIES:
        return character
    code = ord(character)
    if code < 0x100:
        return f"\\x{code:02x}"
    return f"\\u{code:04x}" if code < 0x10000 else f"\\U{code:08x}"


def hash_of(text: str) -> str:
    """The name of an inline script or style in the policy of a page."""
    return f"'sha256-{b64encode(sha256(text.encode()).digest()).decode()}'"


_TONES = (
    ("fits", "green"),
    ("passed", "green"),
    ("above", "red"),
    ("grew", "red"),
    ("unsure", "yellow"),
    ("borderline", "yellow"),
    ("yes", "green"),
    ("out of", "red"),
    ("crashed", "red"),
    ("failed", "red"),
    ("timed out", "red"),
    ("skipped", "yellow"),
    ("short by", "yellow"),
    ("missing", "yellow"),
    ("no", "yellow"),
)
_CODES = {"bold": 1, "red": 31, "green": 32, "yellow": 33}
# An outcome in a line of progress stands after the rung's name.
_OUTCOME = re.compile(
    r"(?<=: )(fits|ran out of (?:host )?memory|out of (?:host )?memory|crashed|failed|timed out"
    r"|skipped)"
)


def columns_of(text: str) -> int:
    """How many columns of a terminal a text takes."""
    from rich.cells import cell_len

    return cell_len(text)


def tone(cell: str) -> str:
    """The color of a cell that begins with an outcome; empty for other text."""
    return next((color for word, color in _TONES if cell.startswith(word)), "")


def painted(text: str, color: str) -> str:
    """The text between the escape sequences of a color; as it is without a color."""
    return f"\x1b[{_CODES[color]}m{text}\x1b[0m" if color and text else text


def painted_outcome(line: str) -> str:
    """A line of progress with its outcome in color."""
    return _OUTCOME.sub(
        lambda match: painted(match[0], tone(match[0].removeprefix("ran "))), line, 1
    )
