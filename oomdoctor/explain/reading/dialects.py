"""The table of out-of-memory messages (`data/dialects.toml`), one row for each wording."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from oomdoctor.explain.reading.printed_sizes import SHORT_SIZE, SIZE
from oomdoctor.package_data import data_of
from oomdoctor.records.report.diagnosis import Frame, ReadPhase, Resource

_INNER = 6  # frames


@dataclass(frozen=True, slots=True)
class Dialect:
    """One wording of a message.

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
    `beside`: like `figures`, but on separate lines before or after the message.
    `in_frames`: the words count only if this pattern is found in the innermost frames.
    """

    name: str
    versions: str
    source: str
    opening: re.Pattern[str]
    figures: Mapping[str, str]
    hints: str
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
    beside: Mapping[str, str] = field(default_factory=dict)

    def applies_to(self, frames: Sequence[Frame]) -> bool:
        """Whether the traceback of a message allows this row."""
        if self.in_frames is None:
            return True
        inner = " ".join(f"{frame.file} {frame.function}" for frame in frames[-_INNER:])
        return re.search(self.in_frames, inner) is not None


NO_DIALECT = Dialect("not_oom", "", "", re.compile("(?!)"), {}, "")
"""That of a failure that is not one of memory."""
_WORDS = {
    "SIZE": SIZE,
    "SHORT": SHORT_SIZE,
    "BYTES": r"\d[\d,]*",
    "NUMBER": r"\d+(?:\.\d+)?",
    "UNIT": r"[KMGT]i?B",
}


def _row(row: dict[str, Any], sets: Mapping[str, Mapping[str, str]]) -> Dialect:
    """A row of the file, with its patterns written out."""
    opening, figures, beside = row.pop("opening"), row.pop("figures", {}), row.pop("beside", {})
    pattern = re.sub("SIZE", lambda _: SIZE, "".join(opening))
    own = sets[figures] if isinstance(figures, str) else _captured(figures)
    return Dialect(**row, opening=re.compile(pattern), figures=own, beside=_captured(beside))


def _captured(figures: Mapping[str, str]) -> dict[str, str]:
    """Patterns of figures whose size is a group."""
    words = "|".join(_WORDS)
    return {
        field: re.sub(words, lambda word: f"({_WORDS[word[0]]})", text)
        for field, text in figures.items()
    }


_TABLE = data_of("dialects.toml")
_SETS = {name: _captured(figures) for name, figures in _TABLE["figures"].items()}
SENTENCES = _SETS["sentences"]  # the figures of torch since 2.1, which lists other processes too
DIALECTS = tuple(_row(row, _SETS) for row in _TABLE["dialect"])


def any_hint(rows: Iterable[str]) -> re.Pattern[str]:
    """A pattern that matches if any of the hints of these rows is present."""
    words = dict.fromkeys(word for hints in rows for word in hints.split("|"))
    return re.compile("|".join(words))
