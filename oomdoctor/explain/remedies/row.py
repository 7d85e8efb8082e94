"""What a remedy is: a row of `data/remedies.toml`, and how to compute what it frees."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from string import Template
from typing import Any

from oomdoctor.analysis.changes.table import smaller_batches
from oomdoctor.explain.diagnosis.case import Case
from oomdoctor.explain.memory.moments import Moment
from oomdoctor.explain.remedies.effect import Effect, halved, saving
from oomdoctor.records.configuration.config import changed_keys
from oomdoctor.stacks.writing.changed_lines import said_by_programs
from oomdoctor.units import MIB, format_bytes

_HALF = 0.5


@dataclass(frozen=True, slots=True)
class Row:
    """One change. `cost`: 0 nothing lost, 1-2 a little speed, 3-4 speed, 5-6 quality, 7+ money.

    `change` starts with a verb. `change`, `note` and `lines` may contain the $names that
    `text_values.values_of` fills in. `settings` are the keys of a rung that it sets, whatever the
    training; how programs say them follows, and `own_lines` say the rest. `programs` are the names
    and kinds of those that can make it; empty for any. `when` says whether the change can help at
    all; `effect` says how much memory it frees.
    """

    key: str
    cost: int
    change: str
    when: Callable[[Case], bool]
    effect: Callable[[Case], Effect]
    own_lines: Mapping[str, str] = field(default_factory=dict)
    note: str | None = None
    settings: Mapping[str, Any] = field(default_factory=dict)
    programs: frozenset[str] = frozenset()

    @property
    def lines(self) -> Mapping[str, str]:
        """What to write, by library."""
        return {**said_by_programs(self.settings), **self.own_lines}


def difference(
    case: Case, changes: Mapping[str, Any], fallback: str, request: float = 0.0
) -> Effect:
    """The bytes that the changed training saves, part by part.

    Counts only what is on the device at the moment of the failure; 0 if none of it changes.
    """
    sets = changes
    if case.training is not None:
        sets = changed_keys(case.training.config, case.training.changed(**changes).config)
    return replace(_difference(case, changes, fallback, request), sets=sets)


def _difference(case: Case, changes: Mapping[str, Any], fallback: str, request: float) -> Effect:
    before = case.moment()
    if before is not None and case.training is not None:
        after = case.moment(case.training.changed(**changes))
        assert after is not None  # because there is one before
        saved = before.size_bytes - after.size_bytes
        if saved > 0:
            return Effect(saved, "arithmetic", parts_text(case, before, after))
        if case.training.tokens is not None and not request:
            return Effect(0, "arithmetic", "nothing on the device gets smaller")
    seen = _seen(case, changes, halves=request == _HALF)
    grows = case.training is not None and case.training.tokens is not None
    if seen is not None and not (before is not None and grows):
        return seen
    if request and (case.requested or 0) >= 50 * MIB and not case.gathered:
        saved = round((case.requested or 0) * request)
        left = (case.requested or 0) - saved
        asked = format_bytes(case.requested)
        text = f"at least the request itself: {asked} -> {format_bytes(left)}"
        return Effect(saved, "arithmetic", f"{text}; {fallback}", at_least=True)
    return Effect(None, "rule", fallback)


def _seen(case: Case, changes: Mapping[str, Any], *, halves: bool) -> Effect | None:
    """What a memory snapshot says that the changes free; None without one."""
    if case.snapshot is None:
        return None
    saved = saving(case.snapshot.held, changes, case.batch)
    return halved(case.snapshot.held) if saved is None and halves else saved


def parts_text(case: Case, before: Moment, after: Moment) -> str:
    """What becomes of each part; of the peak as a whole if it is then at another moment."""
    if before.when != after.when:
        peaks = (before.size_bytes + case.context, after.size_bytes + case.context)
        old, new = (format_bytes(size) for size in peaks)
        return f"peak {old} -> {new} {after.when}"
    olds, news = ({_plain(t.name): t.size_bytes for t in m.terms} for m in (before, after))
    return ", ".join(
        f"{name} {format_bytes(olds.get(name, 0))} -> {format_bytes(news.get(name, 0))}"
        for name in dict.fromkeys((*olds, *news))
        if olds.get(name) != news.get(name)
    )


def _plain(name: str) -> str:
    return name.removeprefix("quantized ")


def fill(text: str, values: Mapping[str, str]) -> str:
    """A text with its $names replaced."""
    return Template(text).safe_substitute(values)


def held(size: int | None, words: str) -> Effect:
    """Bytes that the message itself prints; a rule of thumb if it prints none."""
    return Effect(None, "rule", None) if size is None else Effect(size, "measured", words)


def next_batch(case: Case) -> int | None:
    """The largest smaller batch that divides the current one and frees enough, else 1."""
    if case.batch is None:
        return None
    if case.batch_divisor is not None:
        return max(1, case.batch // case.batch_divisor)
    smaller = smaller_batches(case.batch)
    for size in smaller:
        saved = difference(case, {"micro_batch_size": size}, "", 1 - size / case.batch).frees_bytes
        if saved is not None and case.needed is not None and saved >= case.needed:
            return size
    return smaller[-1 if case.needed is not None and case.sizes else 0] if smaller else 1
