"""A row of the tables of out-of-memory messages, and the words that its patterns may use."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from oomdoctor.explain.reading.printed_sizes import SHORT_SIZE, SIZE
from oomdoctor.records.diagnosis import Frame, ReadPhase, Resource

_INNER = 6  # frames


@dataclass(frozen=True, slots=True)
class Dialect:
    """One wording of a message. To support a new one, add a row and its message to the tests.

    `name` is the contract's name, `versions` the releases that print it, `source` the file that
    does. `opening` finds the message. `hints` are plain words separated by |; every line on which
    `opening` can start contains one of them, so other lines are skipped quickly. `figures` maps
    fields of `OomEvent` to patterns with one group that is a size.

    `phase`: when this message appears, if the traceback does not tell.
    `whole_line`: the opening counts only at the start of a line; elsewhere it is just a phrase.
    `lived_on`: only a process that is still alive prints it or is named in it, so an earlier
    failure of that process did not end the run.
    `hints_only`: it reports the end of a process, and any earlier failure explains it as well.
    `prints_shape`: it prints the shape and the type of the tensor.
    `on_host`: if this pattern is found, the memory was host memory.
    `binary_units`: its KB, MB and GB are powers of 1024.
    `announces`: a warning before the message of the same failure, which says more.
    `in_frames`: the words count only if this pattern is found in the innermost frames.
    """

    name: str
    versions: str
    source: str
    opening: re.Pattern[str]
    figures: Mapping[str, str] = field(default_factory=dict)
    hints: str = field(kw_only=True)
    resource: Resource = "gpu"
    phase: ReadPhase = "unknown"
    whole_line: bool = False
    lived_on: bool = False
    hints_only: bool = False
    prints_shape: bool = False
    on_host: str | None = None
    binary_units: bool = False
    announces: bool = False
    in_frames: str | None = None

    def applies_to(self, frames: Sequence[Frame]) -> bool:
        """Whether the traceback of a message allows this row."""
        if self.in_frames is None:
            return True
        inner = " ".join(f"{frame.file} {frame.function}" for frame in frames[-_INNER:])
        return re.search(self.in_frames, inner) is not None


def figures(**patterns: str) -> dict[str, str]:
    """Patterns of figures by field.

    SIZE stands for a size with a unit, SHORT for one like 31.2G, BYTES for a bare number of bytes.
    """
    return {
        name: text.replace("SIZE", f"({SIZE})")
        .replace("SHORT", f"({SHORT_SIZE})")
        .replace("BYTES", r"(\d[\d,]*)")
        for name, text in patterns.items()
    }
