"""Reading what was typed: every fault of a command line is collected and told at once."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TypeVar

from oomdoctor.errors import OomDoctorError, usage_error
from oomdoctor.units import parse_count, parse_duration, parse_size

T = TypeVar("T")
_PART = r"[A-Za-z0-9][\w.-]*"
_PAGE = re.compile(  # one part is a model from before the hub had owners
    rf"https?://(?:www\.)?(?:huggingface\.co|hf\.co)/({_PART}(?:/{_PART})?)"
    r"(?:/+tree/main)?/*(?:[?#].*)?"
)
_CLOSED_ID = re.compile(rf"({_PART}/{_PART})/+")


class Reader:
    """Reads the values of one command line and collects their faults; `check` raises them all."""

    def __init__(self, command: str) -> None:
        self._command = command
        self._faults: list[str] = []

    def fault(self, option: str, message: str) -> None:
        """Add a fault of an option."""
        self._faults.append(f"{option}: {message}")

    def read(self, option: str, text: str, parse: Callable[[str], T], default: T) -> T:
        """The value of an option; `default` stands in for a faulty one until `check` raises."""
        try:
            return parse(text)
        except ValueError as error:
            self.fault(option, str(error))
            return default

    def size(self, option: str, text: str | None) -> int | None:
        """Bytes, None where the option was not given."""
        return None if text is None else self.read(option, text, parse_size, 1)

    def count(self, option: str, text: str) -> int:
        """A count such as 1M."""
        return self.read(option, text, parse_count, 1)

    def duration(self, option: str, text: str | None) -> float | None:
        """Seconds, None where the option was not given."""
        return None if text is None else self.read(option, text, parse_duration, 1.0)

    def share(self, option: str, text: str) -> float:
        """A share of the whole: `2%` and `0.02` are the same."""
        return self.read(option, text, parse_share, 0.0)

    def integer(self, option: str, text: str, minimum: int = 1, maximum: int | None = None) -> int:
        """A whole number of at least `minimum` and, if there is one, at most `maximum`."""

        def parse(value: str) -> int:
            try:
                number = int(value)
            except ValueError:
                number = minimum - 1
            if number < minimum:
                raise ValueError(f"{value!r} is not a whole number of at least {minimum}")
            if maximum is not None and number > maximum:
                raise ValueError(f"{value!r} is above {maximum}, the highest there is")
            return number

        return self.read(option, text, parse, minimum)

    def choice(self, option: str, text: str, choices: Sequence[T]) -> T:
        """One of the words; the first one stands in for a faulty one until `check` raises."""
        for word in choices:
            if word == text:
                return word
        self.fault(option, f"{text!r} is not one of {', '.join(map(str, choices))}")
        return choices[0]

    def check(self) -> None:
        """Raise a usage error with every fault found so far, if there is one."""
        if self._faults:
            raise self._error()

    def _error(self) -> OomDoctorError:
        return usage_error(
            "bad_option", "\n".join(self._faults), f"run `oomdoctor {self._command} --help`"
        )


def hub_id(name: str) -> str:
    """The id that the address of a model's page, or an id with a slash at its end, stands for.

    Anything else comes back as it is, a folder of that name as well.
    """
    page = _PAGE.fullmatch(name)
    if page is not None:
        return page[1]
    closed = _CLOSED_ID.fullmatch(name)
    return closed[1] if closed is not None and not Path(name).exists() else name


def parse_share(text: str) -> float:
    """A share from 0 to below 1, written `2%` or `0.02`.

    Raises:
        ValueError: the text is something else.
    """
    stripped = text.strip()
    try:
        share = float(stripped.removesuffix("%")) / (100 if stripped.endswith("%") else 1)
    except ValueError:
        share = -1.0
    if not 0.0 <= share < 1.0:
        raise ValueError(f"{text!r} is not a share below the whole; write 2% or 0.02")
    return share
