"""Parses the text of options and collects every error, so that all are reported at once."""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Sequence
from functools import partial
from pathlib import Path
from typing import TypeVar

from oomdoctor.cli.options.answer import FORMATS, AnswerOptions, ListOptions
from oomdoctor.cli.options.exclusions import broken_rules
from oomdoctor.cli.streams import output
from oomdoctor.cli.streams.output import say
from oomdoctor.errors import usage_error
from oomdoctor.records.facts.choices import SIZES
from oomdoctor.records.facts.run_values import choice_of
from oomdoctor.render.formats import format_of_file
from oomdoctor.units import (
    parse_count,
    parse_duration,
    parse_share,
    parse_size,
    parse_whole,
    size_note,
)

S = TypeVar("S")
T = TypeVar("T")
SIZE_KEYS = {
    "--seq-len": "sequence_length",
    "--effective-batch": "effective_batch_size",
    "--micro-batch": "micro_batch_size",
    "--eval-batch": "micro_batch_size",
}
"""The options that are numbers of a rung, and their keys."""
_PART = r"[A-Za-z0-9][\w.-]*"
_PAGE = re.compile(  # ids with one part are models from before the hub had owners
    rf"https?://(?:www\.)?(?:huggingface\.co|hf\.co)/({_PART}(?:/{_PART})?)"
    r"(?:/+tree/main)?/*(?:[?#].*)?"
)
_CLOSED_ID = re.compile(rf"({_PART}/{_PART})/+")


class Reader:
    """Parses the options of one command line. `check` raises all the errors it has collected."""

    def __init__(self, command: str, *, quiet: bool = False) -> None:
        self._command, self._quiet = command, quiet
        self._faults: list[str] = []
        self._hints: list[str] = []
        self._notes: list[str] = []

    def fault(self, option: str, message: str) -> None:
        """Add an error about an option."""
        self._faults.append(f"{option}: {message}")

    def exclude(self, options: object, filled: object = None, typed: Collection[str] = ()) -> None:
        """Add an error for each rule of `exclusions.toml` that the options break.

        `filled` are the same options with what the user's files say, and `typed` has the fields
        that were typed, where that is not to be seen from their values.
        """
        for broken in broken_rules(options, filled, typed):
            self.fault(broken.option, broken.message)
            self._hints += [broken.hint] if broken.hint is not None else []

    def note(self, option: str, message: str) -> None:
        """Say how an option was read, once all are checked."""
        self._notes.append(f"note: {option} {message}")

    def read(self, option: str, value: S, parse: Callable[[S], T], default: T) -> T:
        """What `parse` makes of it; on an error `default`, which is used until `check` raises."""
        try:
            return parse(value)
        except ValueError as error:
            self.fault(option, str(error))
            return default

    def given(self, read: Callable[[str, str], T], option: str, text: str | None) -> T | None:
        """What one of these functions reads; None if the option was not given."""
        return None if text is None else read(option, text)

    def size(self, option: str, text: str) -> int:
        """A size in bytes."""
        self.note_size(option, text)
        return self.read(option, text, parse_size, 1)

    def note_size(self, option: str, text: str) -> None:
        """Say how a size was read, if its writer may have meant another."""
        if (note := size_note(text)) is not None:
            self.note(option, note)

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
        parse = partial(parse_whole, minimum=minimum, maximum=maximum)
        return self.read(option, text, parse, minimum)

    def sized(self, option: str, text: str) -> int:
        """A number of a rung, within the limits of its key."""
        number = self.integer(option, text)
        size = SIZES[SIZE_KEYS[option]]
        if number > size.refused:
            self.fault(option, size.refusal(number))
        return min(number, size.refused)

    def choice(self, option: str, text: str, choices: Sequence[T]) -> T:
        """One of `choices`; on an error the first one, which is used only until `check` raises."""
        return self.read(option, text, partial(choice_of, choices=choices), choices[0])

    def check(self) -> None:
        """Raise one usage error with every message so far; without any, print the notes."""
        if self._faults:
            usual = f"run `oomdoctor {self._command} --help`"
            hint = self._hints[0] if len(self._hints) == len(self._faults) == 1 else usual
            raise usage_error("bad_option", "\n".join(self._faults), hint)
        for note in () if self._quiet else self._notes:
            say(note)
        self._notes.clear()


def hub_id(name: str) -> str:
    """The id behind the address of a model's page, or behind an id with a trailing slash.

    Any other text is returned unchanged, and so is the name of an existing folder.
    """
    page = _PAGE.fullmatch(name)
    if page is not None:
        return page[1]
    closed = _CLOSED_ID.fullmatch(name)
    return closed[1] if closed is not None and not Path(name).exists() else name


def model_name(typed: str) -> str:
    """The absolute path of a folder, because a run may be resumed elsewhere; else the hub id."""
    name = hub_id(typed.strip())
    try:
        folder = Path(name).expanduser()
        return str(folder.resolve()) if name and folder.is_dir() else name
    except (OSError, RuntimeError, ValueError):  # not a valid path on this system
        return name


def chosen_format(command: str, answer: AnswerOptions | ListOptions) -> str:
    """The output format; `--json` is short for `--format json`.

    Raises:
        OomDoctorError: the format is unknown, the two options contradict each other, or the output
            file cannot be written (exit 2); or a package for a page is missing (exit 5).
    """
    reader = Reader(command)
    reader.choice("--format", answer.format_, FORMATS)
    reader.exclude(answer)
    file = answer.output_file
    page = "--format html" if answer.format_ == "html" else None
    if page is None and file is not None and format_of_file(file.name) == "html":
        page = "--output"
    if page is not None and isinstance(answer, ListOptions):
        reader.fault(page, f"{command} has no page for a browser")
    reader.check()
    if file is not None:
        output.check_writable(file)
    if page is not None:
        from oomdoctor.render.formats.html_page import need_page

        need_page(page)
    return "json" if answer.json_ else answer.format_
