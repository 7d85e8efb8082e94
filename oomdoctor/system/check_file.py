"""Reads `oomdoctor.toml`: the commands whose memory is checked, their cards and their budgets.

    [defaults]                  # keys of a check that all of them have
    gpu = "RTX 4090"

    [[check]]
    name = "sft"
    command = "python train.py --config sft.yaml"
    gpu = ["RTX 4090", "2xH100"]
    max_peak = "20GiB"          # or a share of the card: "80%"
    max_growth = "2%"           # above the baseline

A file is checked as a whole, and every error is reported with the name of its check.
"""

from __future__ import annotations

import json
import os
import re
import shlex
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

from oomdoctor.errors import usage_error
from oomdoctor.records.facts.run_values import RANKS, WEIGHTS, choice_of, steps_of, values_of
from oomdoctor.system.recipes.rungs import nearest
from oomdoctor.system.regular_files import bytes_of, plain_text
from oomdoctor.system.toml_text import toml_of
from oomdoctor.units import parse_duration, parse_limit, parse_share

NAME = "oomdoctor.toml"
_EXAMPLE = """\
[[check]]
name = "train"
command = "python train.py"
gpu = "RTX 4090"
max_peak = "20GiB"
"""
_LARGEST = 1 << 20  # bytes; far above any such file
_TOP = ("baseline", "defaults", "check")
_GROWTH = "2%"
_LIMIT = "30m"
_OPTIONS = ("steps", "ranks", "weights", "values", "python")  # those of `run`
_OF_A_SHELL = ("&&", "||", "|", ";", "&", "<", ">", ">>", "2>", "2>&1")
_ASSIGNMENT = re.compile(r"[A-Za-z_]\w*=.*")


@dataclass(frozen=True, slots=True)
class Check:
    """One command on one card, as the file says it.

    `max_peak` is a size, or a share of the card such as `80%`; None: the card is the limit.
    `max_growth` is a share of the baseline. `options` are further options of `run`.
    """

    name: str
    gpu: str
    command: tuple[str, ...]
    max_peak: str | None
    max_growth: float
    limit_s: float
    options: tuple[str, ...] = ()
    environment: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class CheckFile:
    """The checks of a file, one for each card, and the file with their baselines."""

    path: Path
    baseline: Path
    checks: tuple[Check, ...]


def read_checks(path: Path, is_card: Callable[[str], object]) -> CheckFile:
    """The checks of a file. `is_card` raises ValueError where a card is unknown.

    Raises:
        OomDoctorError: there is no such file, or it has errors; all are listed (exit 2).
    """
    try:
        content = toml_of(plain_text(bytes_of(path, _LARGEST)))
    except FileNotFoundError:
        raise usage_error(
            "no_checks", f"there is no {path}", f"write one, such as:\n{_EXAMPLE.rstrip()}"
        ) from None
    except OSError as error:
        raise usage_error("no_checks", f"{path}: {error.strerror or 'cannot be read'}") from None
    except (ValueError, RecursionError) as error:
        raise usage_error("bad_checks", f"{path} is not TOML: {error}") from None
    reading = _Reading(content, is_card, path.absolute().parent)
    checks = reading.checks()
    if reading.faults:
        count = "an error" if len(reading.faults) == 1 else f"{len(reading.faults)} errors"
        message = "\n".join([f"{path} has {count}:", *reading.faults])
        raise usage_error("bad_checks", message, f"for example:\n{_EXAMPLE.rstrip()}")
    baseline = content.get("baseline", "oomdoctor-baseline.json")
    return CheckFile(path, path.parent / baseline, checks)


def check_of(row: Mapping[str, Any], is_card: Callable[[str], object]) -> Check:
    """The check for one card that a row of such a file describes; None counts as not said.

    Raises:
        ValueError: it has errors; all are listed.
    """
    said = {key: value for key, value in row.items() if value is not None}
    reading = _Reading({"check": [said]}, is_card)
    checks = reading.checks()
    if reading.faults or len(checks) != 1:
        raise ValueError("; ".join(reading.faults) or "is for one card")
    return checks[0]


class _Reading:
    """What a file says, and what is wrong with it."""

    def __init__(
        self,
        content: Mapping[str, Any],
        is_card: Callable[[str], object],
        folder: Path | None = None,
    ) -> None:
        self.faults: list[str] = []
        self._content, self._is_card, self._folder = content, is_card, folder
        self._of_all: tuple[str, ...] = ()  # unknown keys of [defaults], which are said once

    def checks(self) -> tuple[Check, ...]:
        """Those of the file, one for each card; only right if there are no faults."""
        content = self._content
        self._refuse_unknown("", content, _TOP)
        if not isinstance(content.get("baseline", ""), str):
            self.faults.append("baseline: is the name of a file")
        defaults, rows = content.get("defaults", {}), content.get("check", [])
        if not isinstance(defaults, Mapping):
            self.faults.append("defaults: is a table, [defaults]")
            defaults = {}
        if not isinstance(rows, list) or not all(isinstance(row, Mapping) for row in rows):
            self.faults.append("check: is a list of tables, [[check]]")
            rows = []
        elif not rows:
            self.faults.append("it has no [[check]]")
        self._refuse_unknown("defaults", defaults, tuple(_KEYS))
        self._of_all = tuple(defaults)
        checks = tuple(
            check
            for number, row in enumerate(rows, 1)
            for check in self._cards_of(number, {**defaults, **row})
        )
        titles = [(check.name, check.gpu) for check in checks]
        for name, gpu in dict.fromkeys(titles):
            if titles.count((name, gpu)) > 1:
                self.faults.append(f"{name}: is there twice for {gpu}; give one another name")
        return checks

    def _cards_of(self, number: int, row: Mapping[str, Any]) -> list[Check]:
        named = row.get("name")
        name = named if isinstance(named, str) and named.strip() else f"check {number}"
        if name != named:
            self.faults.append(f"{name}: has no name")
        self._refuse_unknown(name, row, ("name", *_KEYS, *self._of_all))
        values = {key: self._value(name, key, row.get(key)) for key in _KEYS}
        if not values["command"] and "command" not in row:
            self.faults.append(f"{name}: has no command")
        if not values["gpu"] and "gpu" not in row:
            self.faults.append(f"{name}: has no gpu; for example gpu = 'RTX 4090'")
        if values["python"] is not None:
            values["python"] = self._in_folder(values["python"])
        for gpu in values["gpu"]:
            self._read(f"{name}: gpu", gpu, self._is_card)
        return [
            Check(
                name=name,
                gpu=gpu,
                command=values["command"],
                max_peak=values["max_peak"],
                max_growth=values["max_growth"],
                limit_s=values["time_limit"],
                options=tuple(
                    word
                    for key in _OPTIONS
                    if values[key] is not None
                    for word in (f"--{key}", values[key])
                ),
                environment=values["environment"],
            )
            for gpu in values["gpu"]
        ]

    def _in_folder(self, python: str) -> str:
        """A path of the file's folder, also for a worktree that does not have it."""
        if self._folder is None or os.sep not in python or python.startswith("~"):
            return python
        return str(self._folder / python)

    def _value(self, name: str, key: str, value: Any) -> Any:
        usual, read = _KEYS[key]
        if value is None:
            return usual
        return self._read(f"{name}: {key}", value, read, usual)

    def _read(self, place: str, value: Any, read: Callable[[Any], Any], usual: Any = None) -> Any:
        try:
            return read(value)
        except ValueError as error:
            self.faults.append(f"{place}: {error}")
            return usual

    def _refuse_unknown(self, place: str, row: Mapping[str, Any], keys: tuple[str, ...]) -> None:
        for key in row:
            if key not in keys:
                at = f"{place}: " if place else ""
                self.faults.append(f"{at}unknown key {key}{nearest(key, keys)}")


def _words(value: Any) -> tuple[str, ...]:
    if isinstance(value, str):
        value = shlex.split(value)
        _refuse_shell(value)
    if not isinstance(value, list) or not value or not all(isinstance(v, str) for v in value):
        raise ValueError("is a command, or a list of its words")
    return tuple(value)


def _refuse_shell(words: list[str]) -> None:
    """Refuse what only a shell understands, and the command would get as an argument."""
    if words and _ASSIGNMENT.fullmatch(words[0]):
        name, value = words[0].split("=", 1)
        raise ValueError(
            f"runs without a shell; write environment = {{{name} = {json.dumps(value)}}}"
        )
    for word in words:
        if word in _OF_A_SHELL:
            raise ValueError(
                f"runs without a shell, so {word} is an argument; write ['sh', '-c', '...']"
            )


def _cards(value: Any) -> tuple[str, ...]:
    cards = [value] if isinstance(value, str) else value
    if not isinstance(cards, list) or not cards or not all(isinstance(c, str) for c in cards):
        raise ValueError("is a card, or a list of cards")
    return tuple(cards)


def _text(value: Any) -> str:
    if isinstance(value, bool) or not isinstance(value, str | int):
        raise ValueError("is a text or a whole number")
    return str(value)


def _read_as(read: Callable[[str], object], value: Any) -> str:
    """The text of a value that an option of `run` takes."""
    text = _text(value)
    read(text)
    return text


def _peak(value: Any) -> str:
    text = _text(value)
    parse_limit(text, total_bytes=1)
    return text


def _growth(value: Any) -> float:
    return parse_share(_text(value))


def _seconds(value: Any) -> float:
    return parse_duration(_text(value))


def _variables(value: Any) -> dict[str, str]:
    if not isinstance(value, Mapping):
        raise ValueError("is a table of variables")
    return {name: _text(each) for name, each in value.items()}


# The keys of a check: what they are if the file does not say, and how they are read.
_KEYS: Mapping[str, tuple[Any, Callable[[Any], Any]]] = {
    "command": ((), _words),
    "gpu": ((), _cards),
    "max_peak": (None, _peak),
    "max_growth": (parse_share(_GROWTH), _growth),
    "time_limit": (parse_duration(_LIMIT), _seconds),
    "steps": (None, partial(_read_as, steps_of)),
    "ranks": (None, partial(_read_as, partial(choice_of, choices=RANKS))),
    "weights": (None, partial(_read_as, partial(choice_of, choices=WEIGHTS))),
    "values": (None, partial(_read_as, values_of)),
    "python": (None, _text),
    "environment": ({}, _variables),
}
