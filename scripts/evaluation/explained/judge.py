"""What `explain` says about a text, compared with the truth: one row for each thing asked.

- is_oom, resource, phase and numbers (bytes) are those of the first diagnosis.
- phase: only where the text shows it.
- cause: the first one. It is defensible if an expert could argue for it, and wrong otherwise.
- remedies: a pattern is looked for in all strings of a remedy.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from explained.texts import Text
from oomdoctor.explain.diagnose import diagnose
from oomdoctor.explain.reading.lines.stream import lines
from oomdoctor.explain.reading.scan import scan
from oomdoctor.explain.training.known import Given
from oomdoctor.records.report.diagnosis import Diagnosis, Remedy

NUMBERS = {
    "requested": "requested_bytes",
    "total": "capacity_bytes",
    "free": "free_bytes",
    "allocated": "allocated_bytes",
    "reserved": "reserved_bytes",
    "reserved_unallocated": "reserved_unallocated_bytes",
}


@dataclass(frozen=True, slots=True)
class Measure:
    """A row of the table: its name, and the share of the texts that is the goal.

    With `at_most` the row counts what is wrong, and its share must not be above the goal.
    """

    name: str
    goal: float | None = None
    at_most: bool = False


MEMORY = Measure("memory failure recognized", 0.98)
LOOK_ALIKE = Measure("look-alike recognized", 0.99)
RESOURCE = Measure("resource")
FIGURES = Measure("numbers read", 0.98)
PHASE = Measure("phase, where the text shows it", 0.95)
CAUSE = Measure("first cause right", 0.85)
DEFENSIBLE = Measure("first cause right or defensible", 0.95)
OVERSURE = Measure("high confidence, and wrong", 0.03, at_most=True)
FIRST = Measure("first remedy right", 0.80)
CURE = Measure("cure among the first three", 0.85)
HARM = Measure("harmful among the first three", 0.0, at_most=True)
MEASURES = (
    MEMORY,
    LOOK_ALIKE,
    RESOURCE,
    FIGURES,
    PHASE,
    CAUSE,
    DEFENSIBLE,
    OVERSURE,
    FIRST,
    CURE,
    HARM,
)


@dataclass(frozen=True, slots=True)
class Answer:
    """One thing asked of one text: whether it counts, and what was said and wanted if it missed."""

    measure: Measure
    counts: bool
    said: str
    wanted: str

    @property
    def missed(self) -> bool:
        """Whether it is to be listed: wrong, or right for a measure of what is wrong."""
        return self.counts is self.measure.at_most


def answers(text: Text) -> list[Answer]:
    """All that is asked of one text."""
    found, facts = scan(lines([text.text.encode("utf-8", "surrogatepass")]))
    first = diagnose("log", found, facts, Given())[0]
    kind = MEMORY if text.is_oom else LOOK_ALIKE
    said = f"{'a' if first.is_oom else 'no'} memory failure: {first.verdict}"
    rows = [Answer(kind, first.is_oom == text.is_oom, said, f"resource {text.resource}")]
    rows.append(_equal(RESOURCE, first.resource, (text.resource,)))
    if "unknown" not in text.phases[:1]:
        rows.append(_equal(PHASE, first.phase, text.phases))
    for key, size in text.numbers.items():
        got = getattr(first.numbers, NUMBERS[key])
        rows.append(Answer(FIGURES, got == size, f"{key} {got}", str(size)))
    return [*rows, *_causes(text, first), *_remedies(text, first)] if text.is_oom else rows


def _equal(measure: Measure, said: str, accepted: Sequence[str]) -> Answer:
    return Answer(measure, said in accepted, said, " or ".join(accepted))


def _causes(text: Text, first: Diagnosis) -> Iterator[Answer]:
    """Nothing for a text whose truth knows no cause."""
    if not text.causes:
        return
    cause = first.causes[0].cause if first.causes else "none"
    defended = (*text.causes, *text.defensible)
    yield _equal(CAUSE, cause, text.causes)
    yield _equal(DEFENSIBLE, cause, defended)
    if first.causes and first.causes[0].confidence == "high":
        yield Answer(OVERSURE, cause not in defended, cause, " or ".join(defended))


def _remedies(text: Text, first: Diagnosis) -> Iterator[Answer]:
    top = first.remedies[:3]
    said = "\n".join(f"{number}. {shown(one)}" for number, one in enumerate(top, 1)) or "none"
    for measure, key, count in ((FIRST, "first", 1), (CURE, "top3", 3), (HARM, "bad", 3)):
        patterns = getattr(text, key)
        if patterns:
            fits = any(matches(patterns, one) for one in top[:count])
            yield Answer(measure, fits, said, text.meanings[key])


def matches(patterns: Sequence[str], remedy: Remedy) -> bool:
    """Whether one of the patterns is in a string of the remedy."""
    words = (remedy.change, remedy.arithmetic, remedy.note, *remedy.lines.values(), *remedy.parts)
    told = "\n".join(word for word in words if word)
    return any(re.search(one, told, re.IGNORECASE) for one in patterns)


def shown(remedy: Remedy) -> str:
    """A remedy on one line."""
    code = "; ".join(f"{name}: {line}" for name, line in remedy.lines.items())
    return f"{remedy.change} [{code}]" if code else remedy.change
