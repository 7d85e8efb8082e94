"""Parses the text of options and collects every error, so that all are reported at once."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TypeVar

from oomdoctor.errors import OomDoctorError, usage_error
from oomdoctor.units import parse_count, parse_duration, parse_size

T = TypeVar("T")
_PART = r"[A-Za-z0-9][\w.-]*"
_PAGE = re.compile(  # ids with one part are models from before the hub had owners
    rf"https?://(?:www\.)?(?:huggingface\.co|hf\.co)/({_PART}(?:/{_PART})?)"
    r"(?:/+tree/main)?/*(?:[?#].*)?"
)
_CLOSED_ID = re.compile(rf"({_PART}/{_PART})/+")


class Reader:
    """Parses the options of one command line. `check` raises all the errors it has collected."""

    def __init__(self, command: str) -> None:
        self._command = command
        self._faults: list[str] = []

    def fault(self, option: str, message: str) -> None:
        """Add an error about an option."""
        self._faults.append(f"{option}: {message}")

    def read(self, option: str, text: str, parse: Callable[[str], T], default: T) -> T:
        """The parsed value; on an error `default`, which is used only until `check` raises."""
        try:
            return parse(text)
        except ValueError as error:
            self.fault(option, str(error))
            return default

    def size(self, option: str, text: str) -> int:
        """A size in bytes."""
        return self.read(option, text, parse_size, 1)

    def count(self, option: str, text: str) -> int:
        """A count such as 1M."""
        return self.read(option, text, parse_count, 1)

    def duration(self, option: str, text: str) -> float:
        """A duration in seconds."""
        return self.read(option, text, parse_duration, 1.0)

    def share(self, option: str, text: str) -> float:
        """A fraction: `2%` and `0.02` are the same."""
        return self.read(option, text, parse_share, 0.0)

    def integer(self, option: str, text: str, minimum: int = 1, maximum: int | None = None) -> int:
        """A whole number of at least `minimum` and at most `maximum`."""

        def parse(value: str) -> int:
            try:
                number = int(value)
            except ValueError:
                number = minimum - 1
            if number < minimum:
                raise ValueError(f"{value!r} is not a whole number of at least {minimum}")
            if maximum is not None and number > maximum:
                raise ValueError(f"{value!r} is above the maximum of {maximum}")
            return number

        return self.read(option, text, parse, minimum)

    def choice(self, option: str, text: str, choices: Sequence[T]) -> T:
        """One of `choices`; on an error the first one, which is used only until `check` raises."""
        for word in choices:
            if word == text:
                return word
        self.fault(option, f"{text!r} is not one of {', '.join(map(str, choices))}")
        return choices[0]

    def check(self) -> None:
        """Raise one usage error with every message so far, if there are any."""
        if self._faults:
            raise self._error()

    def _error(self) -> OomDoctorError:
        return usage_error(
            "bad_option", "\n".join(self._faults), f"run `oomdoctor {self._command} --help`"
        )


def hub_id(name: str) -> str:
    """The id behind the address of a model's page, or behind an id with a trailing slash.

    Any other text is returned unchanged, and so is the name of an existing folder.
    """
    page = _PAGE.fullmatch(name)
    if page is not None:
        return page[1]
    closed = _CLOSED_ID.fullmatch(name)
    return closed[1] if closed is not None and not Path(name).exists() else name


def parse_share(text: str) -> float:
    """A fraction from 0 to below 1, written `2%` or `0.02`.

    Raises:
        ValueError: the text is something else.
    """
    stripped = text.strip()
    try:
        share = float(stripped.removesuffix("%")) / (100 if stripped.endswith("%") else 1)
    except ValueError:
        share = -1.0
    if not 0.0 <= share < 1.0:
        raise ValueError(f"{text!r} is not a percentage below 100%; write 2% or 0.02")
    return share
