"""The values of options of `run` that `oomdoctor.toml` has too, and how they are read."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal, TypeVar, get_args

from oomdoctor.units import parse_whole

T = TypeVar("T")
Weights = Literal["real", "synthetic"]
WEIGHTS: tuple[Weights, ...] = get_args(Weights)
RANKS = ("all", "1")
_NAMED_VALUES = ("max", "half")


def choice_of(text: str, choices: Sequence[T]) -> T:
    """The one of `choices` that is written.

    Raises:
        ValueError: it is none of them.
    """
    for choice in choices:
        if choice == text:
            return choice
    raise ValueError(f"{text!r} is not one of {', '.join(map(str, choices))}")


def steps_of(text: str) -> str | int:
    """A number of optimizer steps, `all`, or `steady`: until memory repeats.

    Raises:
        ValueError: it is something else.
    """
    return text if text in ("steady", "all") else parse_whole(text)


def values_of(text: str) -> str:
    """What values that no kernel computed read as: `max`, `half` or a number.

    Raises:
        ValueError: it is something else.
    """
    try:
        if text not in _NAMED_VALUES:
            float(text)
    except ValueError:
        raise ValueError(f"is max, half or a number, such as 1 or nan, not {text!r}") from None
    return text
