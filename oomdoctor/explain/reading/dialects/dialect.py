"""What a row of the table of dialects is, and the words its patterns are written in."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field

from oomdoctor.explain.reading.printed_sizes import SHORT_SIZE, SIZE
from oomdoctor.records.diagnosis import Resource


@dataclass(frozen=True, slots=True)
class Dialect:
    """One wording: the contract's name of its kind, where it is written and since when.

    `opening` finds the message, `figures` maps fields of `OomEvent` to patterns with one group
    that is a size. `source` is the file that prints it, `versions` the releases that do.
    `whole_line`: the opening has to be matched from the first character of a line of the log to
    be more than a word in a sentence. `lived_on`: only a process that was still alive prints it or
    is named by it, so an earlier failure of the same process did not end the run.
    `hints_only`: the exit of a process tells so, and any failure before it explains it as well.
    """

    name: str
    versions: str
    source: str
    opening: re.Pattern[str]
    figures: Mapping[str, str] = field(default_factory=dict)
    resource: Resource = "gpu"
    whole_line: bool = False
    lived_on: bool = False
    hints_only: bool = False


def figures(**patterns: str) -> dict[str, str]:
    """Patterns of figures; SIZE stands for a group that is a size, SHORT for one such as 31.2G."""
    return {
        name: text.replace("SIZE", f"({SIZE})").replace("SHORT", f"({SHORT_SIZE})")
        for name, text in patterns.items()
    }
